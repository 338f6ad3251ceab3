"""Runs arms of a study: the reference engine in this process, every step recorded, on the CPU or a GPU."""

from __future__ import annotations

import logging
import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from harness.studies.arm import Arm, Arrival, Made, StepLog
from harness.studies.machine import MACHINES, Machine

if TYPE_CHECKING:
    from backends.reference.config import EngineSettings, ModelConfig
    from backends.reference.model import Llama
    from backends.reference.request import Request

_log = logging.getLogger(__name__)


class Rig:
    """An engine that stays, for arms that run on it one after the other."""

    def __init__(self, lab: Lab, settings: EngineSettings) -> None:
        import torch

        from backends.reference.build import build_engine
        from results.errors import UsageError

        self._lab, self._settings, self._log = lab, settings, StepLog()
        try:
            built = build_engine(lab.folder, lab.config, settings, self._log, lab.weights.get(settings.dtype))
        except torch.OutOfMemoryError as error:
            raise UsageError(_too_large(lab, settings)) from error
        if built.kernels == "off":
            lab.weights[settings.dtype] = built.model
        self._engine, self.weight_bytes, self._keys = built.engine, built.model.num_bytes, 0

    def run(self, label: str, arrivals: Sequence[Arrival]) -> Arm:
        """Until all are answered. `arrivals` are in order of their steps, which count from 0 in each arm."""
        if label:
            _log.info("  %s: %d requests", label, len(arrivals))
        engine, pending, tokens = self._engine, list(enumerate(arrivals, self._keys)), []
        steps_before, keys_before = engine.num_steps, self._keys
        self._keys += len(arrivals)
        self._log.steps = []
        self._take_threads()
        while pending or engine.scheduler.has_work:
            while pending and pending[0][1].step <= engine.num_steps - steps_before:
                self._submit(*pending.pop(0))
            tokens += [Made(t.key - keys_before, t.step - steps_before, t.sampled) for t in engine.step()]
        return Arm(
            label,
            arrivals,
            [step._replace(step=step.step - steps_before) for step in self._log.steps],
            tokens,
            self._settings.max_num_batched_tokens,
            self._settings.block_size,
            self._lab.config.kv_bytes_per_token(self._settings.dtype),
            self.weight_bytes,
        )

    def scatter(self, draw: random.Random) -> None:
        """Have the free blocks of an idle paged engine lie in no order, as they do after a while."""
        blocks, table = self._engine.scheduler.blocks, list[int]()
        blocks.allocate(table, blocks.num_tokens)
        draw.shuffle(table)
        for block in table:
            blocks.free([block])

    def begin(self, prompts: Sequence[Sequence[int]], output: int) -> None:
        """Have requests decoding that go on for `output` tokens: `decode_s` runs some of their steps."""
        for key, prompt in enumerate(prompts, self._keys):
            self._submit(key, Arrival(0, list(prompt), output))
        self._keys += len(prompts)
        self._take_threads()
        while any(request.num_output_tokens == 0 for request in self._live()):
            self._engine.step()

    def decode_s(self, steps: int) -> float:
        """Run so many more steps; the median of their seconds."""
        self._log.steps = []
        self._take_threads()
        for _ in range(steps):
            self._engine.step()
        return median([s.end - s.start for s in self._log.steps]) / 1e9

    def _live(self) -> list[Request]:
        scheduler = self._engine.scheduler
        return [*scheduler.running, *scheduler.waiting]

    def _submit(self, key: int, arrival: Arrival) -> None:
        from backends.reference.messages import Submit
        from results.errors import UsageError

        # The last token is made, and never a prompt of the next.
        takes, has = len(arrival.prompt) + arrival.output - 1, self._lab.config.max_position
        if takes > has:
            raise UsageError(
                f"This study has requests that take {takes:,} positions, and {self._lab.name} has {has:,}: take another model with "
                "--shape."
            )
        self._engine.submit(Submit(key, f"r{key}", arrival.prompt, arrival.output))

    def _take_threads(self) -> None:
        """One number for the process, and another rig may have had its turn."""
        import torch

        torch.set_num_threads(self._settings.threads)


@dataclass(frozen=True, slots=True)
class Lab:
    """A model, and how arms are run on it. `clock` is the lab for what is timed, where that is another one; `weights` keeps
    those that engines computed by PyTorch share, by dtype."""

    name: str
    folder: Path
    config: ModelConfig
    seed: int = 0
    threads: int = 1
    dtype: str = "float32"
    load_format: str = "auto"
    clock: Lab | None = None
    device: str = "cpu"
    weights: dict[str, Llama] = field(default_factory=dict, repr=False, compare=False)

    @property
    def machine(self) -> Machine:
        """What a study runs with on this lab's device."""
        return MACHINES[self.device]

    @property
    def words(self) -> str:
        """`smollm2-135m, bfloat16, 2 threads`."""
        from results.report_format import plural

        where = plural(self.threads, "thread") if self.device == "cpu" else self.device
        return f"{self.name}, {self.dtype}, {where}"

    @property
    def timed(self) -> Lab:
        """The lab whose clock is believed: a tiny model's steps are mostly fixed cost."""
        return self.clock or self

    def draw(self, salt: str) -> random.Random:
        """Random numbers of a study's own, the same for all of its arms."""
        return random.Random(f"{self.seed} {salt}")

    def prompt(self, draw: random.Random, length: int) -> list[int]:
        """Token ids."""
        return [draw.randrange(self.config.vocab_size) for _ in range(length)]

    def settings(self, max_model_len: int, **asked: Any) -> EngineSettings:
        """An engine's: the lab's own dtype, weights, threads and device, as far as `asked` does not say otherwise."""
        from backends.reference.config import EngineSettings

        mine = {"threads": self.threads, "load_format": self.load_format, "seed": self.seed, "device": self.device}
        return EngineSettings(self.dtype, max_model_len, **{**mine, **asked})

    def rig(self, max_model_len: int, **asked: Any) -> Rig:
        """An engine of these `settings`."""
        return Rig(self, self.settings(max_model_len, **asked))

    def run(self, label: str, settings: EngineSettings, arrivals: Sequence[Arrival]) -> Arm:
        """One arm on an engine of its own."""
        return Rig(self, settings).run(label, arrivals)


def open_lab(
    model: str | None, seed: int, threads: int, shape: str | None = None, clock_threads: int = 2, device: str = "cpu"
) -> Lab:
    """The lab of a device. What is timed has a known shape (None: the device's own) and weights drawn at random. What is counted
    has the model by name or folder (None: on the CPU a tiny one, on a GPU what is timed), started once so that no arm pays for it.
    UsageError for a device that is not there; and what resolve_model and find_config raise."""
    from backends.reference.__main__ import SPIN_COUNT
    from backends.reference.config import read_model_config
    from harness.models.resolve import resolve_model
    from results.errors import UnknownNameError

    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # as the server does, before torch is imported
    if device not in MACHINES:
        raise UnknownNameError("device", device, MACHINES)
    machine = MACHINES[device]
    timed = _drawn(shape or machine.shape, seed, clock_threads, device)
    lab, name = timed, model or machine.counted
    if name is not None:
        folder = resolve_model(name).folder
        lab = Lab(name, folder, read_model_config(folder), seed, threads, clock=timed, device=device)
    lab.run("warm-up", lab.settings(64, kv_cache_tokens=256), [Arrival(0, [1] * 16, 16)] * 4)
    return lab


def _drawn(shape: str, seed: int, threads: int, device: str) -> Lab:
    """In bfloat16, which is what engines serve in."""
    from backends.reference.config import read_model_config
    from harness.models.planning import find_config
    from results.files import to_json

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "config.json").write_bytes(to_json(find_config(shape).config))
        config = read_model_config(folder)
    return Lab(shape, folder, config, seed, threads, "bfloat16", "dummy", device=device)


def _too_large(lab: Lab, settings: EngineSettings) -> str:
    from results.report_format import size

    pool = settings.kv_cache_tokens * lab.config.kv_bytes_per_token(settings.dtype)
    return (
        f"{lab.name} in {settings.dtype} does not fit the memory of {settings.device}: beside its weights this arm keeps {size(pool)} of "
        "keys and values. Free the device (nvidia-smi shows who uses it), or take a smaller model with --shape."
    )
