"""vLLM's log as steps: with `--enable-logging-iteration-details` each leaves a line.

    1764479106.123456 (APIServer pid=7) INFO 11-30 05:05:06 [loggers.py:203] Engine 000: Iteration(515): 1 context requests,
    24 context tokens, 20 generation requests, 20 generation tokens, iteration elapsed time: 10.99 ms, CPU KV cache usage: 0.3%

The seconds in front are ours: the prefix that its log's format takes (`VLLM_LOGGING_PREFIX`) is asked to be the time of the
line, to the microsecond, where its own stamp has whole seconds. The line is written when the step's tokens are handed out, by
the engine itself in older versions and by the API process in newer ones (a step later than it ended by the way between the two).
The elapsed time is not the step's: it is what the engine waited for a result that may have been there already.

A *context request* has no output yet, chunks of a long prompt included. A preempted request that comes back counts as one that
generates, with all its tokens computed anew: those beyond one a request are prompt tokens here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from results.clock import NS_PER_S
from results.logged_steps import LoggedStep, LoggedSteps

STAMP_VARIABLE = "VLLM_LOGGING_PREFIX"
STAMP_FORMAT = "%(created).6f "
_STEP = re.compile(
    r"Iteration\((\d{1,18})\): (\d{1,9}) context requests, (\d{1,9}) context tokens, (\d{1,9}) generation requests, "
    r"(\d{1,9}) generation tokens, iteration elapsed time: [\d.]+ ms( \(dummy\))?"
)
_AT = re.compile(r"(?:^|\) )(\d{9,10})\.(\d{6}) ")
_ENGINE = re.compile(r"EngineCore_DP(\d{1,5})\b|Engine (\d{1,5}): ")


def logged_steps(lines: Iterable[str]) -> LoggedSteps | str:
    """The steps of these lines; why they cannot be told: several engines in one log, or stamps of whole seconds. A line that
    cannot be, fewer tokens than requests, is passed over."""
    told = LoggedSteps()
    before: int | None = None
    engines: set[int] = set()
    unstamped = 0
    for line in lines:
        if (found := _STEP.search(line)) is None or found[6]:
            continue
        if (at := _AT.search(line)) is None:
            unstamped += 1
            continue
        if (engine := _ENGINE.search(line)) is not None:
            engines.add(int(engine[1] or engine[2]))
        if len(engines) > 1:
            return f"{len(engines)} engines (data parallel) log their steps beside each other"
        number, prefills, prompt, decodes, made = map(int, found.groups()[:5])
        if prompt < prefills or made < decodes:
            continue
        end = int(at[1]) * NS_PER_S + int(at[2]) * 1000
        told.append(LoggedStep(number, before, end, None, prefills, prompt + made - decodes, decodes, None))
        before = end
    if unstamped > len(told):
        return (
            f"the lines of its steps carry whole seconds, not the stamps that {STAMP_VARIABLE} asks for: that variable (or a "
            "logging configuration) is set to something else"
        )
    return told
