"""An actor's process: it waits for weights, starts an engine on them, and rolls out until the run ends."""

import signal
import time
from dataclasses import replace

from actors.engine import Engine
from actors.log import SAY_WHY_EVERY_S, say
from actors.loop import Actor, ActorSettings, Observe
from actors.settings import engine_settings
from actors.weights import Snapshots, scratch_folder
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


async def _serve(settings: ActorSettings, store: Store, snapshots: Snapshots, observe: Observe | None) -> None:
    from transformers import AutoTokenizer

    snapshot = None
    began = said = time.monotonic()
    while snapshot is None:
        snapshot = await snapshots.newest(-1, block_ms=1000)
        if time.monotonic() - said > SAY_WHY_EVERY_S:
            said = time.monotonic()
            say(f"waiting for {said - began:.0f} s for the learner to announce its first weights")
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
