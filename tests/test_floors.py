"""The house's floors: who may import whom, no circles, and nothing heavy on the way to `dyno --help`."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.waiting import LONG_S

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("harness", "backends", "workloads", "results", "reports")
ALLOWED = {
    "results": {"results"},
    "workloads": {"workloads", "results"},
    "backends": {"backends", "results"},
    "reports": {"reports", "results"},
    "harness": set(PACKAGES),
}
REFERENCE_MAY_USE = {"results.schema", "results.clock", "results.errors"}
HEAVY = ("torch", "pandas", "pyarrow", "tokenizers", "scipy", "transformers", "aiohttp", "uvloop")


@dataclass(frozen=True)
class Import:
    """One import of ours: in `module` (dotted), of `target`; `lazy` when inside a function or only for type checking."""

    module: str
    target: str
    line: int
    lazy: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def modules() -> dict[str, Path]:
    """Every module of the five packages by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports_of(module: str) -> list[Import]:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    return [
        Import(module, target, line, lazy)
        for target, line, lazy in _walk(tree, package, lazy=False)
        if target.split(".")[0] in PACKAGES
    ]


def _walk(node: ast.AST, package: str, *, lazy: bool) -> Iterator[tuple[str, int, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield alias.name, child.lineno, lazy
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                above = package.split(".")[: len(package.split(".")) - child.level + 1]
                base = ".".join([*above, *([child.module] if child.module else [])])
            for alias in child.names:
                full = f"{base}.{alias.name}"
                yield (full if full in MODULES else base), child.lineno, lazy
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _type_checking(child)
            yield from _walk(child, package, lazy=lazy or inside)


def _type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


ALL_IMPORTS = [found for module in MODULES for found in imports_of(module)]


def test_every_package_is_seen_with_its_imports() -> None:
    assert {module.split(".")[0] for module in MODULES} == set(PACKAGES)
    assert any(i.module == "results.store" and i.target == "results.errors" for i in ALL_IMPORTS)
    assert any(i.lazy for i in ALL_IMPORTS)
    assert any(not i.lazy for i in ALL_IMPORTS)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_imports_from_a_floor_above_or_beside_it(package: str) -> None:
    wrong = [
        str(i)
        for i in ALL_IMPORTS
        if i.module.split(".")[0] == package and i.target.split(".")[0] not in ALLOWED[package]
    ]
    assert not wrong


def test_the_reference_engine_can_be_used_alone() -> None:
    wrong = [
        str(i)
        for i in ALL_IMPORTS
        if i.module.startswith("backends.reference.")
        and not i.target.startswith("backends.reference")
        and i.target not in REFERENCE_MAY_USE
    ]
    assert not wrong


def test_no_circle_at_import_time() -> None:
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in ALL_IMPORTS:
        if not found.lazy and found.target in graph and found.target != found.module:
            graph[found.module].add(found.target)
    assert find_circle(graph) is None


def find_circle(graph: dict[str, set[str]]) -> list[str] | None:
    """A circle as the list of its nodes, or None."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str] | None:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        for target in sorted(graph[node]):
            if circle := visit(target, [*path, node]):
                return circle
        done.add(node)
        return None

    return next((c for node in sorted(graph) if (c := visit(node, []))), None)


def test_circles_are_found() -> None:
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def test_the_command_line_loads_nothing_heavy() -> None:
    code = f"import sys, harness.cli; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=LONG_S, check=True
    )
    assert done.stdout.split() == []
