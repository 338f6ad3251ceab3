# Every target makes what it needs, so each is complete on a fresh machine.
VENV ?= .venv
PYTHON ?= python3
TORCH_INDEX ?=
DYNO = $(VENV)/bin/dyno
# Without an NVIDIA driver, torch is held to a release that has a CPU build.
CONSTRAINT := $(if $(wildcard /proc/driver/nvidia/version),,-c constraints/cpu.txt)

.PHONY: venv demo test test-browser bench lint clean

venv: $(VENV)/.made
$(VENV)/.made: pyproject.toml constraints/cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINT) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -e '.[dev]'
	touch $@

demo: venv
	$(DYNO) models fetch smollm2-135m
	$(DYNO) sweep --backend reference --model smollm2-135m --batch 1,4,16 --input-len 128,512 --output-len 32 --out runs/demo

test: venv
	$(VENV)/bin/python -m pytest -m "not browser and not vllm"

test-browser: venv
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }
	$(VENV)/bin/python -m pytest -m browser

lint: venv
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info
