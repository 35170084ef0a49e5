# Everything on a machine that has only python3 (3.11 or newer), pip, make and git.
#   make demo      a small sweep on the built-in corpus, and its report, within ten minutes on two cores
#   make test      lint, types, tests
#   make quick     the part of the tests that says most in a few minutes, without lint and types
#   make test-all  the slower checks too
#   make setup     only the environment; a second call does nothing
#   PYTHON=python3.12 (to any of them) takes that Python; where .venv is of another version, an environment of its own,
#   .venv-3.12. One that only pyenv has is found too.
#   make torture   faults put into real runs for MINUTES (30), by SEED (0); fails where a result is lost or differs
#   make audit     the pinned dependencies against a list of known vulnerabilities (pypi, or SERVICE=osv); asks the network
#   make bench     our speed beside transformers' and plain JAX's (minutes, and a download the first time)
#   make study     a published comparison run anew, NAME=heads (docs/studies.md); hours, and a stopped one goes on
#   make device    what an accelerator does with this project, DEVICE="--out=DIR --minutes=20"; 20 minutes
#   make bench-hf  checkpoints of transformers against ours, in an environment of its own (minutes, and a download)
#   make fuzz      spoilt input to every command, INPUTS of each kind (100): handled, refused clearly, found
#   make lock      resolve constraints.txt again from pyproject.toml

PYTHON ?= python3
EXTRAS ?= dev
DEMO ?= runs/demo
INPUTS ?= 100
BENCH ?=
DEVICE ?=
NAME ?=
STUDY ?=
MINUTES ?= 30
SEED ?= 0
SERVICE ?= pypi
# The Python that is asked for by name has an environment of its own where .venv is of another version: never another's.
version = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
VENV := .venv
ifneq ($(origin PYTHON),file)
  ifeq ($(call version,$(PYTHON)),)
    override PYTHON := $(lastword $(PYTHON) $(sort $(wildcard $(HOME)/.pyenv/versions/*/bin/$(PYTHON))))
  endif
  ifneq ($(call version,.venv/bin/python),)
    ifneq ($(call version,.venv/bin/python),$(call version,$(PYTHON)))
      VENV := .venv-$(call version,$(PYTHON))
    endif
  endif
endif
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp-$(EXTRAS)
ROOMS := configs models data training eval convert sweeps report studies bench train.py ablax.py

QUICK := tests/configs tests/data tests/models/positions tests/models/test_decode.py tests/eval/test_loss.py \
	tests/eval/test_scoring.py tests/eval/test_profile.py tests/convert/test_separator.py tests/training/test_step.py

.PHONY: demo quick test test-all check torture fuzz audit setup device bench bench-hf study lock clean

demo: $(STAMP)
	$(BIN)/python -m sweeps.launch --sweep=configs/sweeps/demo.py --out=$(DEMO)

test: check
	$(BIN)/python -m pytest -n 2 --dist worksteal

quick: $(STAMP)
	timeout 900 $(BIN)/python -m pytest -n 2 --dist worksteal $(QUICK)

test-all: check
	XLA_FLAGS= $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or not slow"

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(ROOMS)

torture: $(STAMP)
	$(BIN)/python -m tests.torture --minutes=$(MINUTES) --seed=$(SEED)

# Ends with 1 for a vulnerability, with 3 where the service did not answer for every dependency.
audit: $(STAMP)
	test -x $(VENV)/audit/bin/pip-audit || { $(PYTHON) -m venv $(VENV)/audit && $(VENV)/audit/bin/python -m pip install --quiet pip-audit; }
	$(BIN)/python -m bench.audit $(VENV)/audit/bin/pip-audit $(SERVICE)

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c '' || { echo "make: PYTHON=$(PYTHON) is no Python that can be run" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit("Ablax needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[$(EXTRAS)]"
	@touch $@

device: $(STAMP)
	$(BIN)/python -m bench.device $(DEVICE)

study: $(STAMP)
	$(BIN)/python -m studies.run $(NAME) $(STUDY)

bench: $(STAMP)
	$(BIN)/python -m bench.speed $(BENCH)

fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz --inputs=$(INPUTS)

bench-hf: $(STAMP)
	$(BIN)/python bench/hf_round_trip.py

lock: $(STAMP)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --upgrade --no-annotate --no-header --no-emit-index-url --output-file constraints.txt

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache
