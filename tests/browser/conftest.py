"""A Chromium without a network, and pages that note everything they complain about."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
    "--disable-gpu",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail(
            f"No Chromium on the PATH ({', '.join(_NAMES)}). `make test-browser` installs one; -m 'not browser' leaves "
            "these tests out."
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=_FLAGS)
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page with what it complained about and what it asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


Open = Callable[..., Opened]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens a file from disk, offline: `open_page(path, width=390, color_scheme="dark")`."""
    contexts = []

    def open_(path: Path, width: int = 1280, **options: Any) -> Opened:
        context = browser.new_context(offline=True, viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        opened = Opened(context.new_page())
        page = opened.page
        page.on("console", lambda m: opened.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: opened.complaints.append(str(e)))
        page.on("requestfailed", lambda r: opened.complaints.append(f"failed: {r.url}"))
        page.on("request", lambda r: opened.requests.append(r.url))
        page.on("dialog", lambda d: (opened.complaints.append(f"dialog: {d.message}"), d.dismiss()))
        page.goto(path.resolve().as_uri())
        return opened

    yield open_
    for context in contexts:
        context.close()
