"""Terminal and Markdown: fit, complete, and safe with any name."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from reports.console import plain, print_report
from reports.markdown import escape, render_markdown
from results.report_data import ReportData, load_report_data
from tests.reports.runs import Cell, flawed, grid, make_run


def data_of(tmp_path: Path, cells: list[Cell], **options: str) -> ReportData:
    return load_report_data(make_run(tmp_path / "run", cells, **options))  # type: ignore[arg-type]  # options, passed on


def printed(data: ReportData, width: int = 80, colour: bool = False, report: Path | None = None) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=colour, color_system="standard" if colour else None)
    print_report(data, console, report)
    return out.getvalue()


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.parametrize("width", [80, 200])
def test_nothing_is_wider_than_80_columns_and_no_number_is_cut(tmp_path: Path, width: int) -> None:
    engines = ("an-engine-with-a-very-long-label", "vllm")
    cells = grid(engines, (1, 16, 256), (128, 131_072))
    cells[0] = flawed("SUSPECT", "client_lag", "word " * 60)(cells[0])
    data = data_of(tmp_path, cells)
    text = printed(data, width)
    assert max(len(line) for line in lines_of(text)) <= 80
    rows = [line for line in lines_of(text) if re.search(r"(VALID|SUSPECT|INVALID)$", line) and "…" not in line[12:]]
    assert len(rows) == len(data.points)


def test_a_row_holds_what_was_measured(tmp_path: Path) -> None:
    data = data_of(tmp_path, grid(batches=(4,), input_lens=(128,)))
    (row,) = (line for line in lines_of(printed(data)) if line.startswith("reference") and line.endswith("VALID"))
    # engine, input, batch, tok/s, TTFT, TPOT, prefill, decode, KV MiB, verdict
    assert row.split() == ["reference", "128", "4", "91.2", "563", "43.8", "908", "100", "16.7", "VALID"]


def test_output_is_plain_unless_on_a_terminal(tmp_path: Path) -> None:
    data = data_of(tmp_path, [flawed("INVALID", "server_died")(c) for c in grid()])
    assert "\x1b" not in printed(data)
    assert "\x1b" in printed(data, colour=True)


def test_reasons_are_gathered_with_advice_and_the_path_comes_last_in_one_piece(tmp_path: Path) -> None:
    cells = [flawed("SUSPECT", "client_lag", "lag 12 ms")(c) for c in grid()]
    path = Path("/a" * 60) / "report.html"
    found = lines_of(printed(data_of(tmp_path, cells), report=path))
    assert found[-1] == f"Report  {path}"
    text = "\n".join(found)
    assert text.count("client_lag") == 1
    assert "6 cells" in text
    assert "Move the client away." in text


def test_engines_whose_cut_labels_are_alike_are_numbered(tmp_path: Path) -> None:
    text = printed(data_of(tmp_path, grid(("reference-paged-16", "reference-paged-32"), (1,), (128,))))
    assert "engine 1 = reference-paged-16." in text
    assert re.search(r"^engine 2 +128", text, re.MULTILINE)


def test_runs_without_numbers_are_printed(tmp_path: Path) -> None:
    assert "No cell has been committed" in " ".join(lines_of(printed(data_of(tmp_path / "a", []))))
    invalid = printed(data_of(tmp_path / "b", [flawed("INVALID", "no_requests_ok")(c) for c in grid()]))
    assert "–" in invalid
    assert "never 0" in invalid


def test_no_name_reaches_the_terminal_as_markup_or_control(tmp_path: Path) -> None:
    text = printed(data_of(tmp_path, grid(("[red]x[/red]\x1b[31m\a",), (1,), (128,))), colour=False)
    assert "[red]x[/red]" in text
    assert "\x1b" not in text
    assert "\a" not in text
    assert plain("a\x1bb\nc") == "a\ufffdb\ufffdc"


def test_markdown_has_the_conclusions_and_a_row_a_point(tmp_path: Path) -> None:
    cells = grid()
    cells[0] = flawed("INVALID", "server_died", "exit code -9")(cells[0])
    data = data_of(tmp_path, cells)
    text = render_markdown(data)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(data.points)
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
    assert "**INVALID**" in rows[2]
    assert "multiplies output tokens/s by" in text
    assert "exit code -9" in text
    assert data.reproduction.starts[0] in text


def test_markdown_keeps_names_as_text(tmp_path: Path) -> None:
    label = "a|b <img src=x onerror=alert(1)> `c` [d](http://e) @someone #12 **f**\n# g"
    text = render_markdown(data_of(tmp_path, grid((label,), (1,), (128,)), model="```\n</details>"))
    body = text.split("Done with")[0]
    assert "<img" not in body
    assert "</details>" not in body
    assert not re.search(r"^# g", body, re.MULTILINE)
    assert "@someone" not in body
    rows = [line for line in body.splitlines() if line.startswith("| ")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
    # The model's own fence cannot close the code block it stands in.
    fence = re.search(r"^(`{3,})sh$", text, re.MULTILINE)
    assert fence
    assert len(fence[1]) > 3


def test_markdown_escapes_each_character_once() -> None:
    assert escape("a|b*c_d`e[f]~g\\h") == r"a\|b\*c\_d\`e\[f\]\~g\\h"
    assert escape("<b> & ") == "&lt;b&gt; &amp;"
    assert escape("a\x1bc\u202eb") == "a\ufffdc\ufffdb"


@pytest.mark.parametrize("width", [80, 60, 50])
def test_a_narrow_terminal_loses_whole_columns_and_no_letter(tmp_path: Path, width: int) -> None:
    text = printed(data_of(tmp_path, grid(("reference-a", "reference-b"))), width)
    assert max(map(len, text.splitlines())) <= width
    table = "\n".join(text.splitlines()[-18:-2])
    assert "…" not in table
    assert {"engine", "tokens", "batch", "verdict"} <= set(table.split())
    assert {len(line.split()) for line in lines_of(text) if line.endswith(" VALID")} == {{80: 10, 60: 8, 50: 8}[width]}


def test_nothing_in_a_pipe_ends_in_blanks(tmp_path: Path) -> None:
    for line in printed(data_of(tmp_path, grid(("a", "b")))).splitlines():
        assert line == line.rstrip()


def test_the_terminal_has_a_line_on_latency_and_one_on_prefill_and_decode(tmp_path: Path) -> None:
    lines = lines_of(printed(data_of(tmp_path, grid())))
    assert lines[lines.index("Latency") + 1].startswith("  Batch 1 → 16 multiplies TTFT p50")
    assert lines[lines.index("Prefill and decode") + 1].startswith("  Prefill runs at")


def test_a_run_without_a_cell_is_one_sentence(tmp_path: Path) -> None:
    text = printed(data_of(tmp_path, []), report=tmp_path / "report.html")
    assert len(text.splitlines()) == 1
    assert text.startswith("No cell has been committed yet")


def test_reasons_are_told_in_words_with_what_was_seen_and_notes_in_one_sentence(tmp_path: Path) -> None:
    cells = grid()
    cells[0] = flawed("SUSPECT", "client_lag", "lag 12 ms")(cells[0])
    cells[1] = flawed("INVALID", "server_died", "exit code -9")(cells[1])
    cells[2]["reasons"].append(
        {"code": "clock_unknown", "severity": "note", "words": "Clock unknown", "advice": "None."}
    )
    data = data_of(tmp_path, cells)
    said = " ".join(printed(data).split())
    assert "SUSPECT client lag (client_lag), 1 cell reference, 128 in / 64 out, batch 1: lag 12 ms" in said
    assert "INVALID server died (server_died), 1 cell reference, 128 in / 64 out, batch 4: exit code -9" in said
    assert "Noted, and no fault of a number: clock unknown. The report tells more." in said
    # Of all notes the one that says what the figures are of, and the way out, is never among "and 8 more".
    assert "No window (no_window) in 6 cells. None needed." in said
    markdown = render_markdown(data)
    assert r"client lag (client\_lag, suspect, 1 cell)" in markdown
    assert "reference, 128 in / 64 out, batch 1: lag 12 ms" in markdown
