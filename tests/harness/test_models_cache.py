"""The model cache: built once, atomically, checked against its manifest, rebuilt when it cannot be trusted."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.models import ModelFetchError, cache, fetch
from harness.models.cache import MANIFEST, Origin, fault, sha256
from results.errors import UnknownNameError, UsageError
from tests.waiting import LONG_S

TINY = "random-tiny"
TINY_SHA256 = "70cf7c56d787e45bd242c0819a4d3662b245b7f994cf15665a26cac5732ac149"


def silent(_: str) -> None:
    """Drop progress lines."""


def python(code: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]  # Popen's own keywords, passed on  # fmt: skip


def test_a_model_is_built_once_and_is_the_same_on_every_machine(tmp_path: Path) -> None:
    first, second = (fetch(TINY, root=tmp_path, say=silent) for _ in range(2))
    assert (first.built, second.built) == (True, False)
    assert sha256(first.folder / "model.safetensors") == TINY_SHA256
    assert first.manifest.origin.source == "generated"
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == [TINY]


def test_the_manifest_names_every_file_with_its_hash(tmp_path: Path) -> None:
    folder = fetch(TINY, root=tmp_path, say=silent).folder
    files = json.loads((folder / MANIFEST).read_text())["files"]
    assert set(files) == {p.name for p in folder.iterdir()} - {MANIFEST}
    assert all(entry["sha256"] == sha256(folder / name) for name, entry in files.items())


def test_a_file_of_another_size_is_found_without_hashing_and_rebuilt(tmp_path: Path) -> None:
    folder = fetch(TINY, root=tmp_path, say=silent).folder
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1)
    said: list[str] = []
    assert fetch(TINY, root=tmp_path, say=said.append).built
    assert "again (model.safetensors has" in said[0]
    assert fault(folder, full=True) is None


def test_a_changed_byte_with_the_old_size_and_time_is_found_by_verify(tmp_path: Path) -> None:
    folder = fetch(TINY, root=tmp_path, say=silent).folder
    weights = folder / "model.safetensors"
    before = weights.stat()
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not fetch(TINY, root=tmp_path, say=silent).built
    assert fetch(TINY, root=tmp_path, say=silent, verify=True).built
    assert sha256(weights) == TINY_SHA256


def test_a_changed_byte_with_a_new_time_is_found_at_once(tmp_path: Path) -> None:
    folder = fetch(TINY, root=tmp_path, say=silent).folder
    config = folder / "config.json"
    config.write_text(config.read_text().replace("64", "65"))
    os.utime(config, ns=(1, 1))
    assert fault(folder) == "config.json does not have the hash it was built with"


def test_a_copied_cache_is_accepted_although_its_times_differ(tmp_path: Path) -> None:
    folder = fetch(TINY, root=tmp_path / "a", say=silent).folder
    shutil.copytree(folder, tmp_path / "b" / TINY, copy_function=shutil.copyfile)
    assert not fetch(TINY, root=tmp_path / "b", say=silent).built


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 99}', '{"schema": 1, "files": []}', "\x00"])
def test_a_manifest_that_cannot_be_read_means_build_again(tmp_path: Path, text: str) -> None:
    folder = fetch(TINY, root=tmp_path, say=silent).folder
    (folder / MANIFEST).write_text(text)
    assert fetch(TINY, root=tmp_path, say=silent).built


def test_a_missing_file_or_a_file_in_the_folders_place_means_build_again(tmp_path: Path) -> None:
    folder = fetch(TINY, root=tmp_path, say=silent).folder
    (folder / "tokenizer.json").unlink()
    assert fetch(TINY, root=tmp_path, say=silent).built
    shutil.rmtree(folder)
    folder.write_text("not a folder")
    assert fetch(TINY, root=tmp_path, say=silent).built


def test_what_an_older_recipe_built_is_built_again(tmp_path: Path) -> None:
    manifest = fetch(TINY, root=tmp_path, say=silent).folder / MANIFEST
    body = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(body | {"recipe": 0}))
    assert fetch(TINY, root=tmp_path, say=silent).built


def test_a_build_killed_in_its_middle_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    code = f"""
import sys, threading
from pathlib import Path
from harness.models import cache, tiny

def maker(folder):
    tiny.make(folder)
    print("half", flush=True)
    threading.Event().wait()

cache.build(Path({str(tmp_path)!r}), {TINY!r}, 1, maker, lambda: False)
"""
    child = python(code)
    assert child.stdout is not None
    assert child.stdout.readline() == "half\n"
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=LONG_S)
    assert not (tmp_path / TINY).exists()
    assert len(list(tmp_path.glob(".*building*"))) == 1
    assert fetch(TINY, root=tmp_path, say=silent).built
    assert list(tmp_path.glob(".*building*")) == []


def test_two_processes_at_once_build_one(tmp_path: Path) -> None:
    """The first holds its build open until the second says that it waits."""
    code = f"""
import sys
from pathlib import Path
from harness.models import cache, tiny

root = Path({str(tmp_path)!r})

def maker(folder):
    print("building", flush=True)
    sys.stdin.readline()
    return tiny.make(folder)

cache.build(root, {TINY!r}, 1, maker, lambda: cache.fault(root / {TINY!r}) is None, say=lambda line: print(line, flush=True))
print("done", flush=True)
"""
    first = python(code, stdin=subprocess.PIPE)
    assert first.stdout is not None
    assert first.stdout.readline() == "building\n"
    second = python(code, stdin=subprocess.PIPE)
    assert second.stdout is not None
    assert second.stdout.readline() == f"Another process is building {TINY}; waiting for it ...\n"
    assert first.communicate("go\n", timeout=LONG_S)[0] == "done\n"
    assert second.communicate("go\n", timeout=LONG_S)[0] == "done\n"
    assert (first.returncode, second.returncode) == (0, 0)
    assert fault(tmp_path / TINY, full=True) is None


def test_an_interrupted_build_cleans_up_behind_itself(tmp_path: Path) -> None:
    def maker(folder: Path) -> Origin:
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.build(tmp_path, TINY, 1, maker, lambda: False)
    assert [p.name for p in tmp_path.iterdir()] == [f".{TINY}.lock"]


def test_no_room_on_the_disk_is_one_error_that_says_what_to_do(tmp_path: Path) -> None:
    """The system itself refuses: the process may write 64 KiB a file, the weights need 330."""
    code = f"""
from pathlib import Path
from harness.models import ModelFetchError, fetch
try:
    fetch({TINY!r}, root=Path({str(tmp_path)!r}))
except ModelFetchError as error:
    print(error)
"""
    child = python(code, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)))
    out, err = child.communicate(timeout=LONG_S)
    assert out.startswith("No room while building random-tiny in ")
    assert "MiB are free, about 1 MiB are needed" in out
    assert "XDG_CACHE_HOME" in out
    assert "Traceback" not in err
    assert [p.name for p in tmp_path.iterdir()] == [f".{TINY}.lock"]


def test_a_cache_that_cannot_be_made_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFetchError, match=r"Not a directory.*XDG_CACHE_HOME"):
        fetch(TINY, root=tmp_path / "file" / "models", say=silent)


def test_the_cache_follows_xdg_and_ignores_a_relative_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / "dyno" / "models"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.cache_root() == tmp_path / ".cache" / "dyno" / "models"


def test_unknown_names_and_sources_list_the_known() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean 'smollm2-135m'\?"):
        fetch("smolm2-135m", say=silent)
    with pytest.raises(UsageError, match="--source hub is not one of random-tiny's: auto"):
        fetch(TINY, "hub", say=silent)
