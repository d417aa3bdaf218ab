"""What `verge learner`, `verge actor` and the evaluation run: a config turned into a room's settings."""

import asyncio
import os
import secrets
import shlex
import socket
from collections.abc import Sequence
from pathlib import Path

from ops.children import die_with_parent
from ops.models import resolve_model
from ops.monitor.observers import of_actor, of_learner
from ops.prepare import enter_store, prepare
from ops.runfolder import open_config, store_endpoint
from store.client import Store
from store.errors import VergeError


def run_learner_process(run: Path, overrides: Sequence[str] = (), resume: str = "auto") -> None:
    """One rank of the learner; rank 0 also enters the run's problems into the store.

    Args:
        resume: `auto`, `never`, or a checkpoint's folder.
    """
    from learner.config import LearnerSettings
    from learner.loop import run_learner

    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun gives each rank a session: who ends torchrun's does not reach it
        die_with_parent()
    config = open_config(run, overrides)
    url, password = store_endpoint(config)
    prepared = prepare(config)

    async def enter() -> None:
        store = await Store.connect(url, config.name, password, patience_s=config.store.patience_s)
        try:
            await enter_store(store, config, prepared)
        finally:
            await store.close()

    if int(os.environ.get("RANK", "0")) == 0:
        asyncio.run(enter())
    settings = LearnerSettings(
        run=config.name,
        run_dir=config.run_folder,
        store_url=url,
        store_password=password,
        model=prepared.model,
        reference=prepared.reference,
        completion_limit=config.sampling.max_completion_tokens,
        learner=config.learner,
        objective=config.objective,
        correction=config.correction,
        gating=config.gating,
        draw=config.draw,
        admission=config.admission,
        alarms=config.alarms,
        temperature=config.sampling.temperature,
        group_size=config.sampling.group_size,
        seed=config.seed,
        patience_s=config.store.patience_s,
        resume=resume,
    )
    with of_learner(config) as observe:
        run_learner(settings, observe=observe)


def learner_launch(
    run: Path, overrides: Sequence[str], resume: str, nodes: int, ranks_per_node: int, rendezvous: str | None
) -> str:
    """The shell command that starts the learner, to be run on each of its nodes.

    Raises:
        VergeError: the config or the shape cannot work.
    """
    from learner.launch import check_world, launch_command

    config = open_config(run, overrides)
    check_world(config.learner.groups_per_step, nodes * ranks_per_node)
    if nodes > 1 and config.store.url is None:
        raise VergeError(
            f"store.url is not set, and the store that the run starts itself answers only on its own machine, but"
            f" --nodes is {nodes}; set store.url to a Redis that every node reaches"
        )
    options = [option for override in overrides for option in ("--set", override)]
    program = ["verge", "learner", str(run.absolute()), *options, *(["--resume", resume] if resume != "auto" else [])]
    return shlex.join(launch_command(nodes, ranks_per_node, rendezvous, config.name, program))


def run_actor_process(run: Path, name: str | None, overrides: Sequence[str] = ()) -> None:
    """One actor, on uvloop."""
    import uvloop

    from actors.environment import stand_back
    from actors.loop import ActorSettings
    from actors.process import run_actor

    config = open_config(run, overrides)
    url, password = store_endpoint(config)
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    stand_back(config.actor.niceness)
    settings = ActorSettings(
        name=name,
        run=config.name,
        store_url=url,
        store_password=password,
        lease_s=config.store.lease_s,
        patience_s=config.store.patience_s,
        payload_ttl_s=config.store.payload_ttl_s,
        max_lag=config.admission.max_lag,
        model=resolve_model(config.model.path),
        actor=config.actor,
        sampling=config.sampling,
        verifier=config.verifier,
        evaluation=config.evaluation,
        # Two actors, or one that was restarted, must not repeat each other's samples.
        seed=secrets.randbits(31),
    )
    with of_actor(config, name) as observe:
        uvloop.run(run_actor(settings, observe))


def run_evaluation_process(run: Path, trained: Path) -> None:
    """Evaluate base and trained weights on the held-out problems into `evaluation-{base,trained}.json`."""
    from ops.evaluate import evaluate_by_sampling, evaluate_exactly

    config = open_config(run)
    prepared = prepare(config)
    models, problems = [prepared.model, trained], tuple(prepared.problems.held_out)
    if config.evaluation.method == "exact":
        evaluations = [evaluate_exactly(config, model, problems) for model in models]
    else:
        evaluations = evaluate_by_sampling(config, prepared.model, models, problems)
    for label, evaluation in zip(("base", "trained"), evaluations, strict=True):
        evaluation.save(config.run_folder / f"evaluation-{label}.json")
