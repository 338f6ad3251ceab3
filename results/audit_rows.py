"""The table of what makes engines unlike: each setting, what a difference means, and when it bears on the cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from results.audit_facts import EngineFacts, Told
from results.audit_rules import (
    Rule,
    always,
    captured,
    context,
    joining,
    kv_room,
    on_device,
    perhaps,
    promises,
    queue,
    repeats,
    requests_together,
    splitting,
    tokens_a_step,
)
from results.audit_values import (
    amount,
    bits,
    dtype,
    kv_bytes,
    kv_dtype,
    kv_tokens,
    lower,
    off,
    one_dtype,
    sizes,
    unordered,
    versions,
)


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One thing to compare. `means` says what a difference does; `direction` says it with {more} and {less} filled by the
    engines with the largest and the smallest value, where values have an order (False is less than True).

    `read` finds the value; `plain` gives the form in which two values are compared; `rank` their order. Values within
    `tolerance` (a share) are the same. An `optional` row is shown only where an engine tells it. `setting` is False for
    what nobody sets.
    """

    id: str
    words: str
    means: str
    bears: Rule
    direction: str = ""
    read: Callable[[EngineFacts], Told] | None = None
    plain: Callable[[Any], Any] = lambda value: value
    rank: Callable[[Any], float | None] = amount
    tolerance: float = 0.0
    optional: bool = False
    setting: bool = True
    bytes: bool = False
    also_named: tuple[str, ...] = ()

    def told(self, engine: EngineFacts) -> Told:
        return self.read(engine) if self.read else engine.told(self.id, *self.also_named)


AUDIT_ROWS: tuple[AuditRow, ...] = (
    AuditRow(
        "dtype",
        "Weights and activations",
        "The engines compute in different number formats: different bytes to read in each step, and different rounding.",
        always("weights are read in every step"),
        "{less} reads fewer bytes in each step than {more}, and rounds more coarsely.",
        read=dtype,
        plain=one_dtype,
        rank=bits,
    ),
    AuditRow(
        "kv_dtype",
        "KV cache format",
        "The engines keep keys and values in different formats: other bytes a token, other rounding.",
        always("keys and values are read in every step"),
        "{less} reads fewer bytes for each token of context than {more}, holds more tokens in the same memory, and rounds "
        "more coarsely.",
        read=kv_dtype,
        plain=one_dtype,
        rank=bits,
    ),
    AuditRow(
        "quantisation",
        "Quantisation",
        "Quantised weights are read faster and answer differently: in effect another model.",
        always("weights are read in every step"),
        plain=off,
        rank=unordered,
        also_named=("quantization",),
    ),
    AuditRow(
        "max_model_len",
        "Longest context",
        "An engine made for longer contexts sets aside more for each; a request beyond the limit is refused.",
        context,
        "{more} accepts longer requests than {less}, and may set more memory aside for them.",
        also_named=("max_seq_len",),
    ),
    AuditRow(
        "max_num_seqs",
        "Limit of requests together",
        "The engine with the lower limit lets fewer requests run together; the others wait.",
        requests_together,
        "{more} may run more requests together; in {less} the rest waits for a place, so its first tokens come later.",
        also_named=("max_batch_size",),
    ),
    AuditRow(
        "max_num_batched_tokens",
        "Limit of tokens a step",
        "It bounds how much of the waiting prompts a step takes in.",
        tokens_a_step,
        "{more} takes more prompt tokens into one step: prompts finish in fewer steps, running requests wait longer for "
        "their next token than in {less}.",
        also_named=("max_num_tokens",),
    ),
    AuditRow(
        "block_size",
        "KV block size",
        "Attention reads the cache block by block, and a request wastes up to a block less one token.",
        always("attention reads the cache block by block in every step"),
        "{more} wastes more of the cache at the end of each request than {less}, and has fewer blocks to look up.",
        also_named=("tokens_per_block", "page_size"),
    ),
    AuditRow(
        "kv_cache_tokens",
        "KV cache in tokens",
        "It bounds how many requests are held at once before one has to wait or is thrown out.",
        kv_room,
        "{more} holds more tokens at once; {less} is the first to make requests wait, or to throw them out.",
        read=kv_tokens,
        tolerance=0.01,
    ),
    AuditRow(
        "kv_cache_bytes",
        "KV cache in bytes",
        "The engines were given different memory for the cache.",
        kv_room,
        "{more} was given more memory for its cache than {less}.",
        read=kv_bytes,
        tolerance=0.01,
        bytes=True,
    ),
    AuditRow(
        "prefix_caching",
        "Prefix caching",
        "The engine that caches answers a repeated beginning without computing it.",
        repeats,
        "{more} answers a repeated beginning of a prompt from its cache; {less} computes it each time.",
    ),
    AuditRow(
        "chunked_prefill",
        "Chunked prefill",
        "It decides whether a long prompt holds up the requests that are already decoding.",
        splitting,
        "{more} splits prompts into pieces between decodes: steadier gaps between tokens, later first tokens than in {less}.",
    ),
    AuditRow(
        "cuda_graphs",
        "CUDA graphs",
        "Replaying a recorded step saves launching each kernel, which counts the most at small batches.",
        on_device("launching kernels is part of every step"),
        "{more} replays recorded steps; {less} launches each kernel anew, which costs the most at small batches.",
    ),
    AuditRow(
        "cuda_graph_sizes",
        "Captured batch sizes",
        "A batch without a graph of its size runs kernel by kernel.",
        captured,
        plain=sizes,
        direction="{more} has graphs for larger batches than {less}.",
        also_named=("graph_capture_sizes", "cudagraph_capture_sizes", "capture_sizes"),
        optional=True,
    ),
    AuditRow(
        "cuda_graph_padding",
        "Padding to a captured size",
        "Without padding, only batches of exactly a captured size are replayed.",
        captured,
        "{more} pads a batch to the next captured size; {less} runs other sizes kernel by kernel.",
        optional=True,
    ),
    AuditRow(
        "scheduler_policy",
        "Scheduler policy",
        "The engines admit waiting requests by different rules, so the same queue gives other waiting times.",
        queue,
        plain=lower,
        rank=unordered,
        also_named=("scheduler", "scheduling_policy"),
    ),
    AuditRow(
        "admission",
        "Memory promised at admission",
        "An engine that promises a request its memory to the end admits fewer at once, and throws nobody out.",
        promises,
        plain=lower,
        rank=unordered,
        optional=True,
    ),
    AuditRow(
        "batching",
        "Batching",
        "Where a batch is fixed until all in it are done, others wait for the longest, and places stand empty.",
        joining,
        plain=lower,
        rank=unordered,
        optional=True,
    ),
    AuditRow(
        "kv_layout",
        "Layout of the KV cache",
        "Contiguous memory is set aside for the longest request, whatever comes: fewer requests at once.",
        promises,
        plain=lower,
        rank=unordered,
        optional=True,
    ),
    AuditRow(
        "kv_cache",
        "KV cache",
        "Without it each step computes every sequence from its first token.",
        always("every step reads it, or computes anew what it would hold"),
        "{less} computes every sequence from its first token in each step; {more} only the new one.",
        optional=True,
    ),
    AuditRow(
        "async_scheduling",
        "Scheduling beside the step",
        "Preparing the next step while this one runs hides the scheduler's time.",
        always("it is part of every step"),
        "{more} prepares the next step while one runs; in {less} that time adds to each step.",
        optional=True,
        also_named=("overlap_scheduler",),
    ),
    AuditRow(
        "sampling_source",
        "Source of sampling defaults",
        "What a request leaves open (a repetition penalty, say) comes from different places, and costs time where it is used.",
        always("every token is sampled"),
        plain=lower,
        rank=unordered,
        also_named=("generation_config", "sampling_defaults"),
    ),
    AuditRow(
        "speculative_decoding",
        "Speculative decoding",
        "An engine that guesses tokens ahead may give several a step, at a cost that grows with the batch.",
        always("it is part of every decode step"),
        plain=off,
        rank=unordered,
        also_named=("speculative_config",),
    ),
    AuditRow(
        "stream_interval",
        "Tokens a chunk",
        "Tokens sent together look like a late first one and long gaps.",
        always("every stream is cut that way"),
        "{more} gathers more tokens into a chunk than {less}.",
        optional=True,
    ),
    AuditRow(
        "step_log",
        "Log of steps",
        "An engine that logs a line a step does a little more work in each.",
        # docs/limits.md has how that was measured; none of it holds for another engine, or on a GPU.
        perhaps(
            "such a line cost vLLM on a CPU 20 microseconds and no more than 5 % of its tokens/s; of others it was not measured"
        ),
        "{more} logs a line a step, which {less} does not: a little more work in each. The setting step_log makes them alike.",
        optional=True,
    ),
    AuditRow(
        "tensor_parallel",
        "Tensor parallel",
        "The engines use different numbers of devices.",
        always("every step runs on all of them"),
        "{more} uses more devices than {less}.",
    ),
    AuditRow(
        "threads",
        "CPU threads",
        "The engines compute with different numbers of threads.",
        always("every step runs on them"),
        "{more} computes with more threads than {less}.",
        optional=True,
    ),
    AuditRow(
        "device",
        "Device",
        "The engines ran on different devices.",
        always("every step runs there"),
        plain=lower,
        rank=unordered,
        optional=True,
        setting=False,
    ),
    AuditRow(
        "load_format",
        "Source of weights",
        "Made-up weights answer nothing and can flatter a GPU that is limited by power.",
        always("weights are read in every step"),
        plain=lower,
        rank=unordered,
        optional=True,
    ),
    AuditRow(
        "versions",
        "Versions of shared parts",
        "The engines stand on different versions of the same library.",
        always("it is the code that runs"),
        read=versions,
        rank=unordered,
        setting=False,
    ),
)
