"""`verge up`: one run on this machine, from an empty folder to a summary."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from ops.children import Child
from ops.config import RunConfig
from ops.evaluate import Evaluation, compare
from ops.monitor.track import tracker_beside
from ops.placement import VERGE, environment_of, gpus_here, ranks_program
from ops.prepare import Prepared, enter_store, prepare
from ops.progress import Look, Progress, progress
from ops.runfolder import enter_run_folder, run_lock, set_aside, store_endpoint, write_atomically
from ops.serve.beside import PageBeside
from ops.summary import summarise, summary_text
from store.client import Store
from store.errors import VergeError
from store.server import EmbeddedServer

POLL_S = 0.5
HEARD_WITHIN_S = 30.0
"""A heartbeat that is older says nothing of its actor any more."""


def up(config: RunConfig, fresh: bool, summary_file: Path | None, as_json: bool) -> None:
    """Run `config` to its last step, or continue it where it stopped, and print its summary.

    Raises:
        VergeError: what a person must change. Whatever was learned is in the run folder and is continued next time.
    """
    began = time.monotonic()
    out = progress()
    folder = config.run_folder
    if summary_file is not None:
        _check_writable(summary_file)
    if config.placement is not None:
        config.placement.check(gpus_here())
    with run_lock(folder):  # nobody is running in it
        prepared = prepare(config)
    if fresh and (aside := set_aside(folder)) is not None:
        out.say(f"the earlier run is kept in {aside}")
    with run_lock(folder):
        resumed = enter_run_folder(config)
        server = None
        if config.store.url is None:
            server = EmbeddedServer(folder, port=config.store.port, fsync=config.store.fsync)
            server.start()
        try:
            out.say(
                f"run {config.name} in {folder}{' (continued)' if resumed else ''}: {len(prepared.problems.train)} "
                f"problems, {len(prepared.problems.held_out)} held out, model {prepared.model}"
            )
            summary = asyncio.run(_Launch(config, prepared, server, out, began).run())
        finally:
            if server is not None:
                server.stop()
    write_atomically(folder / "summary.json", json.dumps(summary, indent=2))
    if summary_file is not None:
        write_atomically(summary_file, json.dumps(summary, indent=2))
    print(json.dumps(summary, indent=2) if as_json else summary_text(summary))


def _check_writable(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise VergeError(f"--summary {file} cannot be written: {file.parent}: {error.strerror}") from None
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise VergeError(
            f"--summary {file} cannot be written: {'it is a folder' if file.is_dir() else 'no permission'}"
        )


class _Launch:
    """The children of one `verge up`.

    learner and actors running ──learner ends well──▶ actors drain ──▶ evaluation ──▶ summary
              ├── the embedded store dies ──▶ started again on its log
              ├── an actor dies ──▶ restarted after a back-off, given up when it dies again and again
              ├── the page or the tracker dies ──▶ likewise, but the run goes on without it
              └── the learner fails, or Ctrl-C ──▶ actors stop, the learner checkpoints, the reason is raised
    """

    def __init__(
        self, config: RunConfig, prepared: Prepared, server: EmbeddedServer | None, out: Progress, began: float
    ) -> None:
        self._config = config
        self._server = server
        self._prepared = prepared
        self._out = out
        self._began = began
        self._folder = config.run_folder.resolve()
        (self._folder / "logs").mkdir(exist_ok=True)
        self._learner, *self._actors = children_of(config, self._folder)
        self._beside = [PageBeside(config, self._folder, out.say), tracker_beside(config, self._folder, out.say)]
        self._stop = asyncio.Event()

    async def run(self) -> dict[str, Any]:
        """Start everything, watch it to its end, evaluate, and summarise."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        connected = Store.connect(*_connection(self._config), patience_s=self._config.store.patience_s)
        store = await self._unless_stopped(connected)
        try:
            await enter_store(store, self._config, self._prepared)
            await store.set_phase("running")
            store_watch = asyncio.create_task(self._keep_store())
            try:
                for beside in self._beside:
                    beside.start()
                self._learner.start()
                for actor in self._actors:
                    actor.start()
                await self._watch(store)
                # The learner has set the phase to done: actors drain and end by themselves.
                await self._actors_end(store)
            finally:
                store_watch.cancel()
                for actor in self._actors:
                    actor.terminate(self._config.actor.drain_grace_s + 5)
                self._learner.terminate(30)
                self._out.finish()
            evaluation = await self._evaluate(store)
            return await summarise(store, self._config, time.monotonic() - self._began, evaluation)
        finally:
            for beside in self._beside:
                beside.stop()
            await store.close()

    async def _unless_stopped(self, waiting: Coroutine[Any, Any, Store]) -> Store:
        task, stopped = asyncio.ensure_future(waiting), asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not task.done():
            task.cancel()
            raise VergeError("stopped on request, before anything was started")
        return task.result()

    async def _watch(self, store: Store) -> None:
        """Until the learner ends well. Raises VergeError when it fails or we are asked to stop."""
        rate = _Rate()
        while (status := self._learner.exit_status) is None:
            if self._stop.is_set():
                raise VergeError(f"stopped on request; `verge up`, without --fresh, continues {self._folder}")
            now = time.monotonic()
            for actor in self._actors:
                self._keep_running(actor, now)
            for beside in self._beside:
                beside.keep(now)
            self._out.show(await self._look(store, rate, now), now)
            await asyncio.sleep(POLL_S)
        if status != 0:
            await store.set_phase("failed", "the learner failed")
            raise VergeError(
                f"the learner {self._learner.how_it_ended()} (log: {self._learner.log}); `verge up`, without --fresh, "
                "continues at the last checkpoint"
            )

    async def _look(self, store: Store, rate: "_Rate", now: float) -> Look:
        counters, earliest = await store.counters(), time.time() - HEARD_WITHIN_S
        beats = {name: beat for name, beat in (await store.actors()).items() if float(str(beat["time_s"])) > earliest}
        return Look(
            self._config.name,
            self._config.learner.steps,
            self._config.admission.max_lag,
            await store.dynamics(),
            rate.of(counters.get("committed", 0), now) * self._config.sampling.group_size,
            {actor.name: actor.state for actor in self._actors},
            {actor.name: beats[actor.name] for actor in self._actors if actor.name in beats},
            {child.name: line for child in (self._learner, *self._actors) if (line := child.just_said())},
        )

    async def _keep_store(self) -> None:
        """Start the embedded server again when it dies: its log has what was acknowledged, and all wait for it."""
        while self._server is not None:
            if not self._server.alive:
                self._out.say("the store died; starting it again")
                self._server.start()
            await asyncio.sleep(POLL_S)

    def _keep_running(self, actor: Child, now: float) -> None:
        if actor.process is None:
            if now >= actor.not_before_s:
                actor.start()
            return
        status = actor.exit_status
        if status in (None, 0):
            return
        reason = f"{actor.name} {actor.how_it_ended()}"
        if not actor.schedule_restart(now):
            raise VergeError(f"{reason} (again and again; log: {actor.log})")
        self._out.say(f"{reason}; starting it again in {actor.not_before_s - now:.0f} s")

    async def _actors_end(self, store: Store) -> None:
        deadline = time.monotonic() + self._config.actor.drain_grace_s + 10
        while any(actor.process is not None and actor.exit_status is None for actor in self._actors):
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.1)

    async def _evaluate(self, store: Store) -> list[dict[str, Any]]:
        if self._config.evaluation.method == "off" or not len(self._prepared.problems.held_out):
            return []
        manifest = await store.manifest()
        assert manifest is not None, "the learner announces version 0 before its first step"
        if manifest.version == 0:
            return []  # the weights are the base model's
        self._out.say(
            f"evaluating base and version {manifest.version} on {len(self._prepared.problems.held_out)} problems"
        )
        log = self._folder / "logs" / "evaluation.log"
        child = Child("evaluation", ["evaluate", str(self._folder), manifest.path], log)
        child.start()
        try:
            while (status := child.exit_status) is None:
                if self._stop.is_set():
                    raise VergeError(f"stopped on request; the trained weights are in {manifest.path}")
                await asyncio.sleep(0.1)
        finally:
            child.terminate(2)
        if status != 0:
            raise VergeError(f"the evaluation {child.how_it_ended()} (log: {log}); the weights are in {manifest.path}")
        base = Evaluation.load(self._folder / "evaluation-base.json")
        return compare(base, Evaluation.load(self._folder / "evaluation-trained.json"))


class _Rate:
    """Events per second over the last ten seconds."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def of(self, count: int, now: float) -> float:
        self._seen = [(at, seen) for at, seen in self._seen if now - at <= 10.0] + [(now, count)]
        first_at, first = self._seen[0]
        elapsed = now - first_at
        return (count - first) / elapsed if elapsed > 0 else 0.0


def children_of(config: RunConfig, folder: Path) -> list[Child]:
    """The learner and the actors of a run, each with the GPUs that [placement] gives it."""
    placed = {} if config.placement is None else config.placement.by_process()
    threads = config.learner.threads
    learner = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    of_all = [("learner", ["learner", str(folder)], learner)]
    of_all += [(f"actor-{i}", ["actor", str(folder), "--name", f"actor-{i}"], {}) for i in range(config.actor.count)]
    program = {"learner": ranks_program(len(placed["learner"]), config.name)} if placed else {}
    return [
        Child(
            name,
            arguments,
            folder / "logs" / f"{name}.log",
            environment | (environment_of(placed[name]) if name in placed else {}),
            program.get(name, VERGE),
        )
        for name, arguments, environment in of_all
    ]


def _connection(config: RunConfig) -> tuple[str, str, str | None]:
    url, password = store_endpoint(config)
    return url, config.name, password
