"""A plan is carried out: in order, in some processes, each run's line kept as soon as it is done."""

import _thread
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch

from ops.labs.bases import base_folder
from ops.labs.lines import append, left_to_run, line_of, mend, read
from ops.labs.settings import RunSettings
from ops.labs.training import run
from store.errors import VergeError

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""Environment of a worker: glibc would give back, and fetch anew, the few megabytes of every operation's result, which
costs a fifth of the time of a model this small."""

CLEAR_AWAY_S = 5.0


def carry_out(
    plan: Sequence[RunSettings],
    results: Path,
    jobs: int = 1,
    minutes: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Run what of the plan has no line in `results` yet; returns how many of its runs still have none.

    Stopped at any time, it goes on where it was. After `minutes` no run is started, and those in progress end.

    Raises:
        VergeError: `results` has a line that is not a run's, or a process died.
    """
    mend(results)
    left = left_to_run(plan, read(results))
    began, running, planned = clock(), dict[Future[str], RunSettings](), len(left)
    waiting = iter(left)
    os.environ.update(KEEP_MEMORY)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_prepare) as pool:
        done = 0
        while True:
            while len(running) < jobs and (minutes is None or clock() - began < 60 * minutes):
                if (settings := next(waiting, None)) is None:
                    break
                base_folder(settings.base)  # built once, here, rather than by every process
                running[pool.submit(_line, settings)] = settings
            if not running:
                return planned - done
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                settings = running.pop(future)
                try:
                    append(results, future.result())
                except BrokenProcessPool as error:
                    raise VergeError(f"the process of {settings} died; what was done is in {results}") from error
                done += 1
                _say(f"{done} of {planned} after {(clock() - began) / 60:.1f} min: {_short(settings)}")


def _line(settings: RunSettings) -> str:
    return line_of(settings, run(settings))


def _prepare() -> None:
    """In a worker: it ends with the process that started it, and is quiet, for what its parts say of each step is of no
    use here."""
    from transformers.utils import logging

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and hand that down
    threading.Thread(target=_interrupt_when_alone, daemon=True).start()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    sys.stderr = open("/dev/null", "w")  # noqa: SIM115


def _interrupt_when_alone() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _thread.interrupt_main()  # the run's server and folder are cleared away on its way out …
    time.sleep(CLEAR_AWAY_S)
    os._exit(1)  # … and the pool would wait for another


def _short(settings: RunSettings) -> str:
    return (
        ", ".join(f"{name} {value}" for name, value in settings.model_dump(exclude_defaults=True).items()) or "defaults"
    )


def _say(text: str) -> None:
    print(f"lab: {text}", file=sys.stderr, flush=True)
