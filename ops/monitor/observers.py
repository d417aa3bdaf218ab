"""Who is told what a process reports: its own endpoint, and of the learner's steps the experiment tracker."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from ops.config import RunConfig
from ops.monitor.endpoint import endpoint
from ops.monitor.known import of_beats, of_dynamics
from ops.monitor.track import tracking


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
    """What takes the steps of this rank (torchrun's RANK and LOCAL_RANK). Only rank 0 speaks to a tracker.

    Raises:
        VergeError: as `endpoint` and `tracking`.
    """
    rank, local_rank = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK"))
    told: list[Callable[[Mapping[str, float]], None]] = []
    with ExitStack() as open_ones:
        if (first_port := config.metrics.learner_port) is not None:
            port = first_port + local_rank if first_port else 0
            name = f"learner-{rank}" if rank else "learner"
            take = open_ones.enter_context(endpoint(config.run_folder, config.name, name, config.metrics.host, port))
            take({"learner/max_lag": {"": float(config.admission.max_lag)}})
            told.append(lambda figures: take(of_dynamics(figures)))
        if rank == 0 and (tracker := tracking(config)) is not None:
            open_ones.callback(tracker.close)
            told.append(tracker.log)

        def tell(figures: Mapping[str, float]) -> None:
            for one in told:
                one(figures)

        yield tell
