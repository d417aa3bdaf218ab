"""An actor's heartbeats and a learner's steps, told to the endpoint of their process."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from ops.config import RunConfig
from ops.monitor.endpoint import endpoint
from ops.monitor.known import of_beats, of_dynamics


@contextmanager
def of_actor(config: RunConfig, name: str) -> Iterator[Callable[[Mapping[str, object]], None] | None]:
    """What takes an actor's heartbeats; None where it has no endpoint.

    Raises:
        VergeError: as `endpoint`.
    """
    if config.metrics.actor_port is None:
        yield None
        return
    with endpoint(config.run_folder, config.name, name, config.metrics.host, config.metrics.actor_port) as take:
        yield lambda beat: take(of_beats({name: beat}))


@contextmanager
def of_learner(config: RunConfig) -> Iterator[Callable[[Mapping[str, float]], None]]:
    """What takes the steps of this rank (torchrun's RANK and LOCAL_RANK), which does nothing where it has no endpoint.

    Raises:
        VergeError: as `endpoint`.
    """
    if (first_port := config.metrics.learner_port) is None:
        yield lambda _: None
        return
    rank, local_rank = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK"))
    port = first_port + local_rank if first_port else 0
    name = f"learner-{rank}" if rank else "learner"
    with endpoint(config.run_folder, config.name, name, config.metrics.host, port) as take:
        take({"learner/max_lag": {"": float(config.admission.max_lag)}})
        yield lambda figures: take(of_dynamics(figures))
