"""A folder that holds a built TensorRT engine is a model, too: its config has the model's own inside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.models import open_folder
from harness.models.errors import ModelFolderError


def test_a_built_engine_is_opened_with_the_config_inside(tmp_path: Path) -> None:
    inner = {"vocab_size": 512, "architecture": "LlamaForCausalLM"}
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_config": inner, "build_config": {}}))
    with pytest.raises(ModelFolderError):
        open_folder("e", tmp_path)
    (tmp_path / "rank0.engine").touch()
    assert open_folder("e", tmp_path).config == inner
