"""The experts of a mixture-of-experts model: how many there are, and how many of them a step touches."""

from __future__ import annotations

from dataclasses import dataclass

from results.parameters import Config, optional_int, positive_int, text_config


@dataclass(frozen=True, slots=True)
class Experts:
    """`layers` layers of `count` routed experts of `parameters` each, of which a token goes through `per_token`."""

    layers: int
    count: int
    per_token: int
    parameters: int

    @property
    def total(self) -> int:
        """Parameters of all routed experts."""
        return self.layers * self.count * self.parameters

    def touched(self, tokens: float) -> float:
        """Experts of one layer that a step of so many tokens is expected to read: E (1 - (1 - k / E)^T).

        Under uniform routing. Real routers prefer some experts, so they touch fewer.
        """
        missed: float = (1.0 - self.per_token / self.count) ** tokens
        return self.count * (1.0 - missed)


def experts(config: Config) -> Experts | None:
    """The routed experts of a config; None for a dense model. Shared experts and routers are no part of them."""
    config = text_config(config)
    family = str(config.get("model_type", "llama"))
    layers, hidden = (
        positive_int(config, "num_hidden_layers", "n_layer"),
        positive_int(config, "hidden_size", "n_embd"),
    )
    if family.startswith("deepseek"):
        layers -= min(layers, optional_int(config, "first_k_dense_replace", 0))
        count, width = positive_int(config, "n_routed_experts"), positive_int(config, "moe_intermediate_size")
        size = 3 * hidden * width
    elif family in ("mixtral", "gpt_oss"):
        count, width = positive_int(config, "num_local_experts"), positive_int(config, "intermediate_size")
        size = 3 * hidden * width + (2 * width + hidden if family == "gpt_oss" else 0)
    elif optional_int(config, "num_experts", 0):
        count = positive_int(config, "num_experts")
        width = optional_int(config, "moe_intermediate_size", positive_int(config, "intermediate_size"))
        step, listed = optional_int(config, "decoder_sparse_step", 1), config.get("mlp_only_layers")
        dense = listed if isinstance(listed, list) else []
        layers = sum(1 for i in range(layers) if i not in dense and (i + 1) % step == 0)
        size = 3 * hidden * width
    else:
        return None
    return Experts(layers, count, positive_int(config, "num_experts_per_tok"), size)
