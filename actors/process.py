"""An actor's process: it waits for weights, starts an engine on them, and rolls out until the run ends."""

import asyncio
import signal
import time
from dataclasses import replace

from actors.engine import Engine
from actors.log import SAY_WHY_EVERY_S, over, say
from actors.loop import Actor, ActorSettings, Observe
from actors.settings import engine_settings
from actors.weights import Snapshots, Whole, scratch_folder
from store.client import Store
from store.errors import VergeError


def _stop_starting(*_: object) -> None:
    """End an engine that is starting as an error would: ended by the signal itself, it would leave its processes."""
    raise VergeError("stopped on request, while its engine was starting")


async def run_actor(settings: ActorSettings, observe: Observe | None = None) -> None:
    """Connect, wait for the weights to serve, start the engine on them, and roll out until the run ends.

    Args:
        observe: where given, vLLM also keeps its own metrics.
    """
    where = (settings.store_url, settings.run, settings.store_password, settings.lease_s)
    store = await Store.connect(*where, patience_s=settings.patience_s, payload_ttl_s=settings.payload_ttl_s)
    try:
        with scratch_folder() as scratch:
            await _serve(settings, store, Snapshots(store, scratch), observe)
    finally:
        await store.close()


async def weights_to_serve(store: Store, snapshots: Snapshots) -> Whole:
    """The newest weights, once there are any and the run goes on.

    Of a run that is over there is nothing to roll out, and an engine would be started only to end: whoever keeps actors
    alive (Kubernetes, compose) may start them again and again. The learner that continues it says that it goes on.
    """
    began = said = time.monotonic()
    told = ""
    while True:
        phase, reason = await store.phase()
        if phase == "running":
            if (snapshot := await snapshots.newest(-1, block_ms=1000)) is not None:
                return snapshot
            if time.monotonic() - said > SAY_WHY_EVERY_S:
                said = time.monotonic()
                say(f"waiting for {said - began:.0f} s for the learner to announce its first weights")
            continue
        if (ended := over(phase, reason)) != told:
            say(f"{ended}; waiting for a learner that continues it")
            told = ended
        await asyncio.sleep(1)


async def _serve(settings: ActorSettings, store: Store, snapshots: Snapshots, observe: Observe | None) -> None:
    from transformers import AutoTokenizer

    snapshot = await weights_to_serve(store, snapshots)
    version, folder = snapshot.manifest.version, snapshot.folder
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    signal.signal(signal.SIGTERM, _stop_starting)
    # The learner keeps what an engine that starts, for minutes perhaps, is going to read.
    await store.beat(settings.name, {"engine": "starting", "reads_from": snapshots.reads_from})
    how = engine_settings(settings.model, version, folder, tokenizer, settings.actor, settings.sampling, settings.seed)
    engine = await Engine.start(replace(how, metrics=observe is not None))
    say(f"generating with version {version} from {folder}")
    try:
        await Actor(settings, store, engine, tokenizer, snapshots, observe).run()
    finally:
        await engine.close()
