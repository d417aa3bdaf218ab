"""The store, from the learner's synchronous loop: an event loop in a thread of its own.

Training holds the main thread for seconds; the learner's lock is renewed and weights are announced meanwhile.
"""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from store.client import PATIENCE_S, Store
from store.errors import VergeError

T = TypeVar("T")
LOCK_TTL_S = 30.0
"""A dead learner's lock lasts this long; a live one renews it at a third."""
_PATIENCE_WHEN_STOPPING_S = 5.0


class StoreThread:
    """A connected `Store` whose coroutines run in another thread.

    with StoreThread(url, run, password) as line:
        counters = line.call(line.store.counters())     # waits for the result
        future = line.start(line.store.announce(m))     # does not

    With `hold(token)` it also keeps the learner's lock: `check()` raises once the lock was lost.
    """

    def __init__(self, url: str, run: str, password: str | None, patience_s: float = PATIENCE_S) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="store", daemon=True)
        self._thread.start()
        self._run = run
        self._token = ""
        self._keeper: Future[None] | None = None
        try:
            self.store: Store = self.call(Store.connect(url, run, password, patience_s=patience_s))
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> "StoreThread":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it in the thread; from any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it in the thread and wait for its result; from any thread but that one."""
        return self.start(coroutine).result()

    def hold(self, token: str) -> None:
        """Become the run's learner and stay it. VergeError while another is."""
        if not self.call(self.store.acquire_learner(token, LOCK_TTL_S)):
            raise VergeError(
                f"run {self._run!r} has a live learner; stop it, or wait {LOCK_TTL_S:.0f} s if it has just died"
            )
        self._token = token
        self._keeper = self.start(self._renew(token))

    def check(self) -> None:
        """Raise what ended the renewals, if anything did."""
        if self._keeper is not None and self._keeper.done():
            self._keeper.result()

    async def _renew(self, token: str) -> None:
        while True:
            await asyncio.sleep(LOCK_TTL_S / 3)
            if not await self.store.renew_learner(token, LOCK_TTL_S):
                # It may have expired while the store or this process was away, and nobody else took it.
                if await self.store.acquire_learner(token, LOCK_TTL_S):
                    continue
                raise LockLost(f"another learner took over run {self._run!r}; this one stops and changes nothing more")

    def close(self) -> None:
        """Give up the lock, close the connections, end the thread."""
        if self._keeper is not None:
            self._keeper.cancel()
        if self._token:
            self.call(self.store.release_learner(self._token))
        self.call(self.store.close())
        self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextlib.contextmanager
def stop_on_sigterm(line: StoreThread) -> Iterator[threading.Event]:
    """An event that SIGTERM sets instead of ending the process; only the main thread may ask for one.

    Whoever ends a run ends its store, too: an absent one is then waited for no longer than it takes to start again.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def stop(*_: object) -> None:
        asked.set()
        line.store.link.hurry(_PATIENCE_WHEN_STOPPING_S)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)


class LockLost(VergeError):
    """The run has another learner now."""
