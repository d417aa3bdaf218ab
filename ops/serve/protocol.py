"""HTTP as the server speaks it: a client that is slow with its request is not waited for."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_WITHIN_S = 5.0
"""Time for a whole request, from the connection or from the answer before it."""


class Prompt(H11Protocol):
    """uvicorn's protocol, with a clock on every request, so that half-sent ones cannot take all the connections.

    waiting for a request ──whole──▶ answering ──▶ waiting …
          └──REQUEST_WITHIN_S──▶ closed
    """

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection: the clock starts."""
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, and its clock with it."""
        self._stop()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """What has come is read; the clock stops when that is a whole request."""
        super().handle_events()
        cycle: Any = self.cycle
        if cycle is not None and not cycle.more_body and not cycle.response_complete:
            self._stop()

    def on_response_complete(self) -> None:
        """Answered: the next request has as much time."""
        self._expect()
        super().on_response_complete()

    def _expect(self) -> None:
        self._stop()
        self._late = self.loop.call_later(REQUEST_WITHIN_S, self._too_late)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        self.transport.abort()
