"""The ranks of one learner: torchrun's environment (or one rank without it), and the few words they exchange.

What crosses ranks besides tensors is JSON in bytes; nothing is pickled.
"""

import atexit
import contextlib
import io
import json
import logging
import os
import socket
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

Reduction = Literal["sum", "max", "min"]
_ALONE = "VERGE_ALONE"
"""Id of a process without torchrun, beside the variables it sets for itself: to what it starts they mean nothing."""
_OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class Ranks:
    """This process among the learner's ranks. Every method but the properties is collective: all ranks call it."""

    def __init__(self) -> None:
        deepspeed = import_deepspeed()
        if _nobody_gave_a_rank():
            alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
            os.environ.update(alone | {"MASTER_PORT": str(_free_port()), _ALONE: str(os.getpid())})
        if not dist.is_initialized():
            deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo", verbose=False)
            # DeepSpeed remembers the group, so it lasts as long as the process.
            atexit.register(dist.destroy_process_group)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        local = int(os.environ.get("LOCAL_RANK", "0"))
        self.device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which decides and speaks."""
        return self.rank == 0

    def reduce(self, values: list[float], how: Reduction) -> list[float]:
        """Element-wise reduction over ranks, in float64."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        return self.reduce_tensor(tensor, how).tolist()

    def reduce_tensor(self, tensor: torch.Tensor, how: Reduction) -> torch.Tensor:
        """The same in place, for a tensor on the training device."""
        if self.world > 1:
            dist.all_reduce(tensor, _OPERATIONS[how])
        return tensor

    def gather(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Every rank's numbers, float64[n] of each, one after another."""
        if self.world == 1:
            return values
        sizes = [int(size) for size in self.reduce([len(values) * (r == self.rank) for r in range(self.world)], "sum")]
        padded = torch.zeros(max(sizes), dtype=torch.float64, device=self.device)
        padded[: len(values)] = torch.from_numpy(values)
        found = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(found, padded)
        return np.concatenate([part[:size].cpu().numpy() for part, size in zip(found, sizes, strict=True)])

    def broadcast(self, message: Any) -> Any:
        """Rank 0's JSON value, on every rank; what the others pass is ignored."""
        if self.world == 1:
            return message
        data = json.dumps(message).encode() if self.first else b""
        size = torch.tensor([len(data)], dtype=torch.int64, device=self.device)
        dist.broadcast(size, 0)
        buffer = torch.zeros(int(size), dtype=torch.uint8, device=self.device)
        if self.first:
            buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(buffer, 0)
        return json.loads(buffer.cpu().numpy().tobytes())

    def wait(self) -> None:
        """A barrier."""
        if self.world > 1:
            dist.barrier()


def import_deepspeed() -> Any:
    """DeepSpeed, quiet, on the CPU where there is no CUDA, and without its shared-memory op that needs a compiler.

    The op would be compiled at initialisation, for a minute, and fail where there is no compiler; gloo does its work.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with quietly():
        import deepspeed
        import deepspeed.ops

        # Its first reading would try to compile every op, for seconds, with the linker's errors on stderr.
        vars(deepspeed.ops).setdefault("__compatible_ops__", {"deepspeed_shm_comm": False})
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    return deepspeed


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without DeepSpeed's reports of memory and configuration, which it prints and logs at import and at start."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(previous)


def _nobody_gave_a_rank() -> bool:
    """Whether there is no RANK in the environment, or only that of a process alone which started this one."""
    own = str(os.getpid())
    inherited = "TORCHELASTIC_RUN_ID" not in os.environ and os.environ.get(_ALONE, own) != own
    return inherited or "RANK" not in os.environ


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
