"""The connection to Redis: retries, scripts, and errors in words that a person can act on."""

import asyncio
import hashlib
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from store.errors import VergeError

Argument = str | bytes | int | float

SCRIPTS = (
    "open", "add_problems", "issue", "take", "renew", "commit", "refuse", "use", "retire", "rollback", "announce",
    "hold", "facts", "problem_table", "snapshot", "keep_reference",
)  # fmt: skip
AWAY = (
    exceptions.ConnectionError, exceptions.TimeoutError, OSError,
    exceptions.ClusterError, exceptions.RedisClusterException, exceptions.TryAgainError, exceptions.AskError,
)  # fmt: skip
"""What may be different soon: no answer; of a cluster, slots without a node or on the move."""
_SAY_EVERY_S = 5.0
_SHORTEST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 2.0
_ANSWER_WITHIN_S = 30.0
MAX_BLOCK_MS = 10_000
"""Longest wait inside the server, well within what counts as no answer."""
_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class Script:
    """A script of store/lua."""

    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())

    @property
    def command(self) -> str:
        """A script that only reads is run so that a user who may only read can run it."""
        return "EVALSHA_RO" if "flags=no-writes" in self.text.partition("\n")[0] else "EVALSHA"


class Link:
    """One pool of connections, which outlives the server's absence.

    answering ──connection lost──▶ retrying, with back-off ──▶ answering
                                       └──patience_s over──▶ VergeError

    What is retried may have been done before the answer was lost: every operation of the store is idempotent.
    """

    def __init__(self, url: str, password: str | None, patience_s: float) -> None:
        self.name = public_url(url)
        self.absences = 0
        """How often an operation was answered only after the server had been away."""
        self._patience_s = patience_s
        # A server that is not asked in TLS, or not shown a certificate, may just hang up: nothing says which it was.
        self._tls_hint = (
            " Does that port speak TLS, and does it ask for store.cert_file?" if url.startswith("rediss") else ""
        )
        self._url = url
        self._settings: dict[str, Any] = {
            "password": password,
            "protocol": 2,
            # No socket_timeout: redis-py would send through asyncio.wait_for, which before Python 3.12 swallows a
            # cancellation that arrives as the send ends, and a cancelled task would run on for ever. See `call`.
            "socket_timeout": None,
            "socket_connect_timeout": 5.0,
            "socket_keepalive": True,
            "max_connections": _CONNECTIONS,
        }
        self.is_cluster = False
        never = {"retry": Retry(NoBackoff(), 0), "retry_on_error": []}
        pool = BlockingConnectionPool.from_url(url, timeout=None, **self._settings, **never)
        self.redis: Any = _raw_streams(Redis.from_pool(pool))
        lua = files("store") / "lua"
        self._scripts = {name: Script((lua / f"{name}.lua").read_text()) for name in SCRIPTS}

    async def close(self) -> None:
        """Close every connection."""
        await self.redis.aclose()

    async def follow_cluster(self) -> None:
        """Send each command to the node that has its key; the server at the URL is one node of a cluster."""
        await self.redis.aclose()
        # Once more where a slot has moved; a node that is away is waited for by `call`.
        once = Retry(NoBackoff(), 1)
        self.redis = _raw_streams(RedisCluster.from_url(self._url, retry=once, **self._settings))
        self.is_cluster = True

    async def run(self, script: str, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """The reply of a script of store/lua."""
        known = self._scripts[script]

        async def evaluate(redis: Any) -> Any:
            try:
                return await redis.execute_command(known.command, known.sha, len(keys), *keys, *arguments)
            except exceptions.NoScriptError:
                await redis.script_load(known.text)
                return await redis.execute_command(known.command, known.sha, len(keys), *keys, *arguments)

        return await self.call(evaluate)

    def script(self, name: str) -> Script:
        """A script, for use inside an operation given to `call`."""
        return self._scripts[name]

    async def call(self, operation: Callable[[Any], Awaitable[Any]]) -> Any:
        """The result of an operation on `redis`, repeated while the server is away.

        Untyped: redis-py's own types unite sync, async, bytes and text, so that every use would need a cast.

        Raises:
            VergeError: it stayed away for longer than `patience_s`, or it refused for a reason a person must remove.
        """
        began = said = time.monotonic()
        pause_s = _SHORTEST_PAUSE_S
        while True:
            try:
                async with asyncio.timeout(_ANSWER_WITHIN_S):
                    result = await operation(self.redis)
                self.absences += pause_s > _SHORTEST_PAUSE_S
                return result
            except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
                raise self.in_words(error) from error
            except AWAY as error:
                if untrusted := _tls_fault(error):
                    raise VergeError(f"the store at {self.name} {untrusted}") from error
                now = time.monotonic()
                why = str(error).replace("\n", " ") or f"no answer within {_ANSWER_WITHIN_S:g} s"
                if now - began >= self._patience_s:
                    raise VergeError(
                        f"the store at {self.name} has not answered for {now - began:.0f} s ({why}); "
                        f"is its server running, and is store.url right?{self._tls_hint}"
                    ) from error
                if now - said >= _SAY_EVERY_S:
                    said = now
                    print(
                        f"store: waiting for {self.name} for {now - began:.0f} of {self._patience_s:g} s: {why}",
                        file=sys.stderr,
                        flush=True,
                    )
            except exceptions.ResponseError as error:
                raise self.in_words(error) from error
            await asyncio.sleep(min(pause_s, max(0.0, began + self._patience_s - time.monotonic())))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def hurry(self, patience_s: float) -> None:
        """Wait no longer than this for an absent server, from now on; from any thread."""
        self._patience_s = min(self._patience_s, patience_s)

    def in_words(self, error: Exception) -> Exception:
        """What a person must do about an error of the server; the error itself where nobody can do anything."""
        text = str(error)
        denied = "ACL failure" in text or "user executing the script can't" in text
        if isinstance(error, exceptions.NoPermissionError) or denied:
            return VergeError(
                f"the store at {self.name} forbids this user what it asks for ({text.partition(' script:')[0]}); "
                "`verge state acl RUN` prints what each role may do"
            )
        if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError) or "NOAUTH" in text:
            return VergeError(f"the store at {self.name} refuses the password; set store.password_file")
        if "VERGE " in text:
            return VergeError(text.partition("VERGE ")[2].partition(" script:")[0])
        if "NOGROUP" in text:
            return VergeError(f"the store at {self.name} has no such run: its learner has not opened it")
        if isinstance(error, exceptions.OutOfMemoryError) or "OOM " in text or "used memory >" in text:
            return VergeError(
                f"the store at {self.name} has reached its memory limit; raise maxmemory or lower learner max_lag"
            )
        if "MISCONF" in text:
            return VergeError(
                f"the store at {self.name} cannot write its log to disk (is it full?); nothing acknowledged is lost"
            )
        if "unknown command" in text.lower():
            return VergeError(f"the store at {self.name} lacks a command ({text}); use Redis 7.0, Valkey 7.2, or newer")
        return error


def _tls_fault(error: BaseException | None) -> str:
    """What waiting will not mend; "" where it may."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"has a certificate that is not trusted ({error.verify_message}); "
                "set store.ca_file to the certificate of the authority that signed it"
            )
        error = error.__cause__ or error.__context__
    return ""


def public_url(url: str) -> str:
    """The URL as it may be printed: scheme, host, port, path; neither user nor password nor query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _raw_streams(redis: Any) -> Any:
    for command in ("XRANGE", "XREVRANGE", "XREAD"):
        redis.set_response_callback(command, _as_sent)
    return redis


def _as_sent(response: Any, **options: Any) -> Any:
    """Stream replies stay lists of bytes: turning each entry into a dict first would be half the cost of reading."""
    return response
