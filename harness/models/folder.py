"""Writing the files of a Hugging Face model folder with numpy alone."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def bf16_bits(values: Array) -> npt.NDArray[np.uint16]:
    """float32 to bfloat16 bit patterns, rounded to nearest, ties to even. Finite values only."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def write_bf16_safetensors(path: Path, shapes: dict[str, tuple[int, ...]], read: Callable[[str], Array]) -> None:
    """Write the tensors in the order of `shapes`, one in memory at a time. `read(name)` gives float32.

    The format: 8 bytes little-endian header length, JSON header padded with blanks to 8 bytes, then the data.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for name, shape in shapes.items():
            values = read(name)
            if values.shape != shape:
                raise ValueError(f"{name} has shape {values.shape}, {shape} was announced")
            file.write(bf16_bits(values).astype("<u2").tobytes())


def write_json(path: Path, value: Any) -> None:
    """UTF-8 JSON, two blanks of indent, as Hugging Face tools write it."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def byte_level_bpe(
    vocab: dict[str, int], merges: list[list[str]], special: dict[str, int], *, split_digits: bool
) -> dict[str, Any]:
    """A tokenizer.json of the GPT-2 kind: byte-level BPE, the special tokens cut out first.

    `split_digits` puts every digit on its own before GPT-2's pattern sees the text.
    """
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    added = [
        {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for token, i in sorted(special.items(), key=lambda item: item[1])
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]} if split_digits else byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }
