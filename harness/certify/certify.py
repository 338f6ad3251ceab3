"""One certification: a truth server, a tool sent at it, its result file read and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.certify.card import Card, error_card
from harness.certify.reported import FORMATS, find_result
from harness.certify.tool import check_command, fill_in, run_tool, tool_version
from harness.truth.process import TruthServer
from harness.truth.schedule import Schedule
from harness.truth.words import MODEL_NAME, write_tokenizer
from results.errors import EngineError

_RESULTS = ("*.json", "*.csv")


def certify(
    command: Sequence[str],
    folder: Path,
    schedule: Schedule,
    *,
    result: Path | None = None,
    timeout_s: float = 600.0,
    env: Mapping[str, str] | None = None,
) -> Card:
    """Run `command` (placeholders and all) against a truth server and compare. Files go into `folder`: out/, tokenizer/, tool.log.
    `env`: variables for the tool beside our own.

    Raises UsageError for a command or result that cannot be used, EngineError for a tool that fails.
    """
    check_command(command, result_named=result is not None)
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    tokenizer = write_tokenizer(folder / "tokenizer")
    with TruthServer(schedule) as server:
        values = {
            "url": server.url,
            "host": server.host,
            "port": str(server.port),
            "model": MODEL_NAME,
            "tokenizer": str(tokenizer.resolve()),
            "out": str(out.resolve()),
        }
        before = set(out.rglob("*"))
        ran = run_tool(fill_in(command, values), folder / "tool.log", timeout_s, env or {})
        truth = server.collect()
    if not len(truth.whole):
        raise EngineError(
            f"The tool ended well, but the truth server answered no request in full ({len(truth)} came). See {folder / 'tool.log'}."
        )
    candidates = [Path(str(result).replace("{out}", str(out)))] if result is not None else _candidates(out, before)
    _, reported = find_result(candidates)
    packages = next(known.packages for known in FORMATS if known.tool == reported.tool)
    return error_card(truth, reported, ran, reported.version or tool_version(ran.command, packages))


def _candidates(out: Path, before: set[Path]) -> list[Path]:
    """Files the tool wrote that may be its summary, the outermost first."""
    found = {path for pattern in _RESULTS for path in out.rglob(pattern) if path.is_file()} - before
    return sorted(found, key=lambda path: (len(path.parts), path.suffix != ".json", path.name))
