"""Killable worker processes for verifiers of the user's: limits on time and memory, and always a full pool."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.verifiers.spec import Spec
from store.wire import Verdict

WORKER = Path(__file__).with_name("worker.py")
MAX_REPLY_BYTES = 1 << 16
KEPT_SPEC_BYTES = 64 << 20
"""Most bytes of specs that a worker keeps, the newest apart; no more than an eighth of its memory limit either."""
POLL_S = 0.05
"""How soon the death of a worker is seen when something it forked still holds its socket open."""


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class WorkerDied(Exception):
    """The worker ended, or sent something that is not a reply. The message completes "the process …"."""


class CannotImport(Exception):
    """A function of the run cannot be imported; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker may take: seconds per check, seconds to start and import, bytes beyond its imports."""

    check_s: float
    import_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a check. `why` is for people; it is empty unless the verdict is `error` or `timeout`."""

    verdict: Verdict
    why: str = ""


class Worker:
    """One process, the leader of a session of its own, so that it is killed with everything it started.

    It is killed, never asked to stop: a verifier may be holding it.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", streams: Streams, limits: Limits) -> None:
        self._process = process
        self._reader, self._writer = streams
        self._limits = limits
        self._functions: set[str] = set()
        self._specs: dict[int, int] = {}
        """Bytes of each spec that the process has, by key, in the order in which they came."""

    @classmethod
    async def start(cls, limits: Limits) -> "Worker":
        """Spawn a process. It dies with the thread that this runs in."""
        ours, theirs = socket.socketpair()
        with theirs:
            # -P: the folder of worker.py must not come first on its path, there is a number.py in it.
            process = subprocess.Popen(
                [sys.executable, "-P", str(WORKER), str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        worker = cls(process, await asyncio.open_connection(sock=ours), limits)
        worker._send({"path": sys.path, "memory_bytes": limits.memory_bytes})
        return worker

    @property
    def pid(self) -> int:
        """Process id, and id of its group."""
        return self._process.pid

    async def load(self, function: str) -> None:
        """Import `module:function`, once.

        Raises:
            CannotImport: it cannot be imported, or not in time. The worker must be killed.
        """
        if function in self._functions:
            return
        try:
            reply = await self.ask({"import": function}, self._limits.import_s)
        except TimeoutError:
            raise CannotImport(f"importing {function} took over {self._limits.import_s:g} s") from None
        except WorkerDied as death:
            raise CannotImport(f"importing {function}: the process {death}") from None
        if "error" in reply:
            raise CannotImport(str(reply["error"]))
        self._functions.add(function)

    def tell(self, spec: Spec) -> None:
        """Give the process a spec, unless it has it; the oldest are dropped for it."""
        if spec.key in self._specs:
            return
        self._specs[spec.key] = len(spec.data)
        most = min(KEPT_SPEC_BYTES, self._limits.memory_bytes // 8)
        dropped = []
        while len(self._specs) > 1 and sum(self._specs.values()) > most:
            dropped.append(next(iter(self._specs)))
            del self._specs[dropped[-1]]
        self._send({"keep": spec.key, "bytes": len(spec.data), "drop": dropped})
        self._writer.write(spec.data)

    async def ask(self, message: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Send a frame and return the reply. After TimeoutError or WorkerDied the worker must be killed."""
        loop = asyncio.get_running_loop()
        self._send(message)
        reply = asyncio.ensure_future(self._receive())
        end = loop.time() + limit_s
        try:
            while not reply.done():
                left = end - loop.time()
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait({reply}, timeout=min(POLL_S, left))
                if not reply.done() and self._process.poll() is not None:
                    raise WorkerDied(self._how_it_ended())
            return reply.result()
        except (OSError, EOFError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise WorkerDied(self._how_it_ended()) from None
        finally:
            reply.cancel()

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        self._writer.write(struct.pack(">I", len(body)) + body)

    async def _receive(self) -> dict[str, Any]:
        size = struct.unpack(">I", await self._reader.readexactly(4))[0]
        if size > MAX_REPLY_BYTES:
            raise WorkerDied(f"sent a reply of {size} bytes")
        try:
            reply = json.loads(await self._reader.readexactly(size))
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise WorkerDied("sent a reply that is not one")
        return reply

    def kill(self) -> None:
        """End the process and everything in its group, and wait for it: after SIGKILL that takes no time."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop has been closed before
            self._writer.transport.abort()

    def _how_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(POLL_S)
        code = self._process.poll()
        if code is None:
            return "closed its connection"
        return f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"


class Pool:
    """`size` places for workers.

    Invariant: free places + checks under way = `size`, whatever the checks do.

        empty ── first check ──▶ checking ── reply ──▶ idle ── next check ──▶ checking
          ▲                          │
          └── killed ◀── timeout, death, out of memory, cancelled
    """

    def __init__(self, size: int, limits: Limits) -> None:
        self._limits = limits
        self._free: asyncio.LifoQueue[Worker | None] = asyncio.LifoQueue()
        for _ in range(size):
            self._free.put_nowait(None)
        self._workers: set[Worker] = set()
        self._closed = False

    @property
    def free(self) -> int:
        """Places where no check is under way."""
        return self._free.qsize()

    @property
    def pids(self) -> set[int]:
        """Process ids of the workers there are."""
        return {worker.pid for worker in self._workers}

    async def load(self, function: str) -> None:
        """See that `module:function` can be imported, in a worker of its own.

        Raises:
            CannotImport: it cannot, or not in time.
        """
        worker = await self._start()
        try:
            await worker.load(function)
        finally:
            self._discard(worker)

    async def check(
        self, function: str, spec: Spec, completion: str, grace_s: float = 0.0, limit_s: float | None = None
    ) -> Outcome:
        """Run one check as soon as a place is free; the time limit counts from then on, without starting a worker.

        Args:
            grace_s: what a function that keeps the limit itself gets in addition, before its worker is killed.
            limit_s: of this check; None: that of the pool.
        """
        limit_s = limit_s or self._limits.check_s
        worker = await self._free.get()
        healthy = False
        try:
            worker = worker or await self._start()
            await worker.load(function)
            worker.tell(spec)
            message = {"function": function, "spec": spec.key, "completion": completion}
            reply = await worker.ask(message, limit_s + grace_s)
            healthy = not reply.get("replace")
            if "error" in reply:
                return Outcome(Verdict.ERROR, f"{function}: {reply['error']}")
            if "timeout" in reply:
                raise TimeoutError
            return Outcome(Verdict.CORRECT if reply.get("correct") is True else Verdict.WRONG)
        except TimeoutError:
            return Outcome(Verdict.TIMEOUT, f"{function} took over {limit_s:g} s")
        except WorkerDied as death:
            return Outcome(Verdict.ERROR, f"{function}: the process {death}")
        except CannotImport as failure:
            return Outcome(Verdict.ERROR, str(failure))
        finally:
            if worker is not None and not healthy:
                self._discard(worker)
            self._free.put_nowait(worker if healthy else None)

    async def _start(self) -> Worker:
        if self._closed:
            raise WorkerDied("was not started: the pool is closed")
        worker = await Worker.start(self._limits)
        self._workers.add(worker)
        return worker

    def _discard(self, worker: Worker) -> None:
        self._workers.discard(worker)
        worker.kill()

    def close(self) -> None:
        """Kill every worker. Checks under way end in `error`."""
        self._closed = True
        for worker in list(self._workers):
            self._discard(worker)
