"""What vLLM's own processes do for us.

They call `die_with_parent` through the entry point `vllm.general_plugins`, and add `Worker` to their workers
(`worker_extension_cls`).
"""

import ctypes
import multiprocessing
import os
import signal
from typing import Any

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


class Worker:
    """What vLLM adds to each of its workers, called by `collective_rpc`."""

    model_runner: Any  # vLLM's own

    def differing(self, weights_file: str) -> list[str]:
        """Parameters that are not the file's, bit for bit.

        Compared are those that vLLM has under the file's name and shape: all that it neither merges, shards nor packs.

        Raises:
            ValueError: there is none.
        """
        import torch
        from safetensors import safe_open

        parameters, compared, wrong = dict(self.model_runner.get_model().named_parameters()), 0, []
        with safe_open(weights_file, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                ours = parameters.get(name)
                if ours is None or list(ours.shape) != file.get_slice(name).get_shape():
                    continue
                compared += 1
                if not torch.equal(file.get_tensor(name).to(ours.device, ours.dtype), ours):
                    wrong.append(name)
        if not compared:
            raise ValueError(f"no parameter of the engine has the name and shape of one in {weights_file}")
        return wrong
