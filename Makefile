# make demo       set up, then train the tiny model and print what it learned
# make test       set up, then lint, type-check and test
# make audit      ask for advisories on the locked packages
# make setup      only set up
# make lock       renew requirements.lock from pyproject.toml
# make reference  renew ops/COMMANDS.md and ops/CONFIG.md from the code

VENV   ?= .venv
PYTHON ?= python3.11
STAMP  := $(VENV)/.verge-installed
BIN    := $(VENV)/bin

export HF_HUB_OFFLINE ?= 1
# vLLM and DeepSpeed must see the same compiler and ninja that set-up installed.
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: setup system demo test lint types audit lock reference clean

setup: system $(STAMP)

system:
	@sh ops/setup/system.sh

$(STAMP): requirements.lock pyproject.toml ops/setup/install.sh
	@sh ops/setup/install.sh "$(VENV)" "$(PYTHON)"
	@touch $@

demo: setup
	$(BIN)/verge up ops/configs/demo.toml --fresh --summary runs/demo/summary.json

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

test: lint types
	@sh ops/setup/system.sh test
	$(BIN)/python -m pytest

audit: setup
	$(BIN)/python ops/setup/audit.py dependencies

lock:
	@sh ops/setup/lock.sh "$(PYTHON)"

reference: setup
	$(BIN)/verge reference commands > ops/COMMANDS.md
	$(BIN)/verge reference config > ops/CONFIG.md

clean:
	rm -rf $(VENV) runs models
