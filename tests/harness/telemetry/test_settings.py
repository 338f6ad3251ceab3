"""How often to sample: nonsense is refused in words, zero is off, and too fast is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.experiment import load_experiment
from harness.telemetry.settings import Telemetry, TelemetrySource
from results.errors import UsageError


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, "abc", "0.5", True, None])
def test_nonsense_is_no_interval(value: Any) -> None:
    with pytest.raises(ValidationError, match="number of seconds"):
        Telemetry(interval_s=value)


@pytest.mark.parametrize("text", [".nan", ".inf", "-1", "abc"])
def test_an_experiment_file_with_nonsense_is_refused_with_the_field(text: str, tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(
        f"model: m\nengines: [{{label: a, backend: openai}}]\nworkloads: []\nloads: []\ntelemetry: {{interval_s: {text}}}\n"
    )
    with pytest.raises(UsageError, match=r"telemetry\.interval_s"):
        load_experiment(path)


def test_zero_is_off_and_faster_than_the_sensor_is_told() -> None:
    assert Telemetry(interval_s=0).off
    assert Telemetry(source=TelemetrySource.NONE).off
    assert not Telemetry().off
    assert "1 ms is faster than any sensor" in str(Telemetry(interval_s=0.001).warning)
    assert Telemetry(interval_s=0.02).warning is None
    assert Telemetry(interval_s=0).warning is None


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(ValidationError, match="auto"):
        Telemetry.model_validate({"source": "nvidia"})


@pytest.mark.parametrize("off", [{"source": "none"}, {"interval_s": 0}])
def test_telemetry_that_is_off_cannot_be_required(off: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="leave one of the two out"):
        Telemetry(required=True, **off)
