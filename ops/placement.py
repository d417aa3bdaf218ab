"""Which GPUs the processes of `verge up` get."""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from learner.launch import launch_command
from store.errors import VergeError
from store.section import Section

Gpus = tuple[Annotated[int, Field(ge=0)], ...]
DRIVER = Path("/proc/driver/nvidia/gpus")
"""Where NVIDIA's driver lists a machine's GPUs."""
VERGE = (sys.executable, "-m", "ops.cli")
"""The `verge` command of this installation."""


class PlacementConfig(Section):
    """GPUs of the processes that `verge up` starts, by the numbers that `nvidia-smi` gives them. Without this section
    every process sees them all, and each takes the first."""

    learner: Gpus = Field(min_length=1)
    """GPUs of the learner, one rank on each."""
    actors: tuple[Gpus, ...] = ()
    """For each actor its `actor.tensor_parallel` GPUs, as in [[1], [2]]."""

    def by_process(self) -> dict[str, Gpus]:
        """Process → its GPUs."""
        return {"learner": self.learner} | {f"actor-{index}": gpus for index, gpus in enumerate(self.actors)}

    def why_unfit(self, actors: int, tensor_parallel: int, groups_per_step: int) -> str | None:
        """Why it does not fit a config, as one line with what to change; None where it does."""
        if len(self.actors) != actors:
            return (
                f"placement.actors has GPUs for {len(self.actors)} actors, but actor.count is {actors}: it must have"
                " one list for each"
            )
        for index, gpus in enumerate(self.actors):
            if len(gpus) != tensor_parallel:
                return (
                    f"placement.actors gives actor-{index} {len(gpus)} GPUs, but its engine takes {tensor_parallel}"
                    f" (= actor.tensor_parallel): name {tensor_parallel}"
                )
        if len(self.learner) > groups_per_step:
            return (
                f"placement.learner has {len(self.learner)} GPUs, but a step has {groups_per_step} groups"
                " (= learner.groups_per_step), one a rank at least: name fewer GPUs"
            )
        owners = [(gpu, process) for process, gpus in self.by_process().items() for gpu in gpus]
        twice = [gpu for gpu, count in Counter(gpu for gpu, _ in owners).items() if count > 1]
        if twice:
            who = " and ".join(process for gpu, process in owners if gpu == twice[0])
            return f"placement gives GPU {twice[0]} to {who}: a GPU has the memory for one process; name another"
        return None

    def check(self, here: Sequence[int]) -> None:
        """VergeError where it names a GPU that is not `here`."""
        for process, gpus in self.by_process().items():
            for gpu in gpus:
                if gpu not in here:
                    there = f"GPUs {', '.join(map(str, here))}" if here else "no GPU"
                    raise VergeError(
                        f"placement gives GPU {gpu} to {process}, but this machine has {there} for us; name others, or"
                        " leave [placement] out"
                    )


def gpus_here(environment: Mapping[str, str] = os.environ, driver: Path = DRIVER) -> tuple[int, ...]:
    """Numbers of the GPUs that we may use: the driver's, as far as CUDA_VISIBLE_DEVICES names them."""
    found = range(len(list(driver.glob("*"))))
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(found)
    named = {int(part) for part in visible.split(",") if part.strip().isdecimal()}
    return tuple(gpu for gpu in found if gpu in named)


def environment_of(gpus: Iterable[int]) -> dict[str, str]:
    """What makes a process see these GPUs and no others; in the order of `nvidia-smi`, which is not CUDA's own."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def ranks_program(ranks: int, run: str) -> tuple[str, ...]:
    """What starts `verge` as so many ranks on this machine."""
    if ranks == 1:
        return VERGE
    _torchrun, *options = launch_command(1, ranks, None, run, VERGE)
    return (sys.executable, "-m", "torch.distributed.run", *options)
