"""Writes a run's report.html."""

from __future__ import annotations

from pathlib import Path

from reports.html import render_html
from results.errors import StoreError
from results.files import write_atomic
from results.report_data import ReportData, load_report_data
from results.store import RunStore

MAX_BYTES = 6 * 2**20


def render_report(store: RunStore, data: ReportData | None = None) -> Path:
    """Write `report.html` into the run's folder (atomically) and return its path.

    Pass `data` where it is at hand already. Raises StoreError when the page would pass its size limit.
    """
    page = render_html(data if data is not None else load_report_data(store)).encode()
    if len(page) > MAX_BYTES:
        raise StoreError(
            f"The report of {store.path} would be {len(page) / 2**20:.1f} MiB, above the limit of {MAX_BYTES / 2**20:.0f} MiB, "
            "and was not written. summary.json holds every number; split the run into several."
        )
    path = store.path / "report.html"
    write_atomic(path, page)
    return path
