"""What vLLM reads from the environment, and the cores that an engine on a CPU gets."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from actors.config import core_numbers
from store.errors import VergeError


def prepare_environment(cpu_kv_cache_gib: int) -> None:
    """Set what vLLM reads from the environment when it is imported. Values the user has set win."""
    defaults = {
        "VLLM_CPU_KVCACHE_SPACE": str(cpu_kv_cache_gib),
        "VLLM_LOGGING_LEVEL": "ERROR",  # its warnings at every reload ("Failed to load weights") are of buffers
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE": "32",  # sequences whose tokens it handles before others have their turn
        "TOKENIZERS_PARALLELISM": "false",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def one_process(cores: tuple[int, ...]) -> Iterator[None]:
    """Let an engine that starts in here run its model in its scheduler's process, on the cores it was given.

    By default vLLM gives a CPU model a process of its own, and the two wait for each other in busy loops: on a machine
    with few cores that costs a fifth of what the actor can do. The process inherits its threads' places from here.
    """
    wanted = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": str(len(cores)),
        "OMP_PLACES": "{" + ",".join(map(str, cores)) + "}",
        "OMP_PROC_BIND": "true",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def stand_back(niceness: int) -> None:
    """Give this process, and what it starts, so much less of cores that others want, too."""
    if not niceness:
        return
    os.nice(niceness)
    if os.getsid(0) == os.getpid():  # as under `verge up`: the session is ours alone
        # Where Linux first shares cores out among sessions, niceness is only compared within one.
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(niceness))


def machine_cores(text: str) -> tuple[int, ...]:
    """The machine's numbers of the cores that `text` counts among those this process may use.

    Raises:
        VergeError: there are not so many.
    """
    allowed, wanted = sorted(os.sched_getaffinity(0)), core_numbers(text)
    if wanted[-1] >= len(allowed):
        raise VergeError(
            f"actor.cpu_cores is {text}, but only {len(allowed)} cores can be used here, counted from 0; "
            f"name some of 0-{len(allowed) - 1}, or leave it out"
        )
    return tuple(allowed[core] for core in wanted)
