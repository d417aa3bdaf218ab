"""A TCP proxy that loses connections: the request arrives, its answer does not."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class LossyProxy:
    """Forwards to a port of this machine; each chunk of answers is lost, with its connection, at probability `loss`."""

    def __init__(self, target: int, seed: int, loss: float) -> None:
        self._target = target
        self._random = random.Random(seed)
        self._loss = loss
        self.cut = 0
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["LossyProxy"]:
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        forward = asyncio.create_task(_copy(reader, far_writer))
        try:
            while answer := await far_reader.read(1 << 16):
                if self._random.random() < self._loss:
                    self.cut += 1
                    break
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            forward.cancel()
            for end in (writer, far_writer):
                with suppress(OSError):
                    end.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, asyncio.CancelledError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
