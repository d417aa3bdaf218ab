"""What vLLM's own processes do for us: they load this through the entry point `vllm.general_plugins`."""

import ctypes
import multiprocessing
import os
import signal

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Let an engine's process end when the actor that started it does, even by SIGKILL; nothing in any other process.

    An engine without its actor would keep its memory, and its GPU, for ever.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent.pid:  # it was faster
        os.kill(os.getpid(), signal.SIGKILL)
