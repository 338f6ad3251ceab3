"""The documentation as code: its pages, their fenced blocks, and the commands that stand in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
SHELL = frozenset({"", "sh", "bash", "shell", "console"})
# A block that cannot be tried says why after these words in its info string.
NOT_RUN = "not run: "

_FENCE = re.compile(r"^(?P<mark>`{3,})(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=mark)[ \t]*$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`(dyno [^`\n]+)`(?!`)")
_COMMENT = re.compile(r"\s(#|   )\s*\S.*$")  # after a command: `# words`, or words in a column of their own


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `reason` is empty where it is to be tried."""

    page: str
    line: int
    language: str
    reason: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_shell(self) -> bool:
        return self.language in SHELL

    def commands(self) -> Iterator[list[str]]:
        """The command lines of a shell block as words: continued lines joined, comments cut, `NAME=value` lines put in."""
        values: dict[str, str] = {}
        for line in _joined(self.text):
            if found := re.fullmatch(r"(?:export )?([A-Z_]+)=(.*)", line):
                values[found[1]] = found[2].strip("\"'")
                continue
            for name, value in values.items():
                line = line.replace(f"${name}", value)
            for part in _COMMENT.sub("", line).removeprefix("$ ").split(" && "):
                if words := shlex.split(part):
                    yield words


def _joined(text: str) -> Iterator[str]:
    """Lines, with those that end in a backslash joined to the next, as a shell does; empty ones and comments left out."""
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.strip()


def blocks_of(path: Path) -> list[Block]:
    """Every fenced block of a page."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    found = []
    for match in _FENCE.finditer(text):
        language, _, rest = match["info"].strip().partition(" ")
        reason = rest[len(NOT_RUN) :].strip() if rest.startswith(NOT_RUN) else ""
        found.append(Block(name, text.count("\n", 0, match.start()) + 1, language, reason, match["text"]))
    return found


def inline_commands(path: Path) -> list[str]:
    """`dyno ...` in the running text of a page."""
    return _INLINE.findall(_FENCE.sub("", path.read_text(encoding="utf-8")))


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
