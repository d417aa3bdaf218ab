"""The server's process: a socket, a store connection that waits, and an end that is heard."""

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ops.config import RunConfig
from ops.gate import gate_of
from ops.runfolder import open_config, store_of, write_atomically
from ops.serve.secret import token_for
from ops.serve.watch import Watch
from store.client import Store
from store.errors import VergeError

URL_FILE = Path("serve") / "server.json"
"""Where a run's folder says how its page is reached."""
_STORE_PATIENCE_S = 2.0
"""A page that says that the store is away is of more use than one that waits."""
_CONNECTIONS = 256
_HEADER_BYTES = 64 * 1024
_PACKAGES = ("fastapi", "jinja2", "prometheus_client", "tokenizers", "uvicorn")


def serve(run: Path, overrides: Sequence[str] = ()) -> None:
    """Serve a run, live or finished, until SIGINT or SIGTERM. In a store of `store.url` it waits for the run.

    Raises:
        VergeError: the run has no store yet, the address cannot be listened on, the token file is unusable, or a
            package is missing.
    """
    _check_installed()
    config = open_config(run, overrides)
    token = token_for(config)
    with store_of(config) as (url, password):
        asyncio.run(_serve(config, url, password, token))


def _check_installed() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise VergeError(f"the page needs {', '.join(missing)}: pip install 'verge-rl[serve]'")


def address(host: str, port: int) -> str:
    """The page's URL."""
    shown = socket.gethostname() if host in ("0.0.0.0", "::", "") else host  # noqa: S104 - compared, not bound
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"


def listen(config: RunConfig) -> socket.socket:
    """A socket that listens where [serve] says; port 0: where it listened last time, if that is free."""
    host, wanted = config.serve.host, config.serve.port
    last = 0
    if not wanted:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            last = int(json.loads((config.run_folder / URL_FILE).read_text(encoding="utf-8"))["port"])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in dict.fromkeys((wanted or last, wanted)):
        try:
            return socket.create_server((host, port), family=family, backlog=128)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
    raise VergeError(f"serve.host {host}, serve.port {wanted} cannot be listened on: {reason}; set another, or port 0")


def _leave(path: Path, facts: dict[str, object]) -> None:
    """Say where the server is, for `verge up` and for the next start; a folder that is read-only needs no such help."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(facts))


async def _until_there_is_a_run(store: Store, config: RunConfig) -> None:
    """Where store, learner and page are started at once, the learner opens the run when it has read its problems."""
    waits = False
    while not await store.meta():
        if config.store.url is None:
            raise VergeError(f"the store has no run {config.name!r} yet; `verge up` starts it")
        if not waits:
            said = f"serve: the store has no run {config.name!r} yet; waiting for the learner that opens it"
            print(said, file=sys.stderr, flush=True)
        waits = True
        await asyncio.sleep(1)


@contextlib.contextmanager
def _listening(config: RunConfig, token_file: Path | None) -> Iterator[socket.socket]:
    """The page's socket, said to whoever started us and left for whoever looks for the page."""
    with listen(config) as listening:
        where = address(config.serve.host, listening.getsockname()[1])
        _leave(config.run_folder / URL_FILE, {"url": where, "port": listening.getsockname()[1], "pid": os.getpid()})
        print(f"serve: run {config.name} at {where}", file=sys.stderr, flush=True)
        if token_file is not None:
            print(f"serve: it asks for the token in {token_file}", file=sys.stderr, flush=True)
        yield listening


async def _serve(config: RunConfig, url: str, password: str | None, token: tuple[str, Path] | None) -> None:
    import uvicorn

    from ops.serve.app import application
    from ops.serve.protocol import Prompt

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # ours end it, below, so that what is open is closed after it

    store = await Store.connect(url, config.name, password, patience_s=config.store.patience_s)
    try:
        await _until_there_is_a_run(store, config)
        store.link.hurry(_STORE_PATIENCE_S)
        server = Server(
            uvicorn.Config(
                application(config, Watch(store, gate_of(config)), token[0] if token else None),
                http=Prompt,  # an h11, which bounds the size of a request's head
                ws="none",
                h11_max_incomplete_event_size=_HEADER_BYTES,
                limit_concurrency=_CONNECTIONS,
                timeout_graceful_shutdown=1,
                access_log=False,
                log_level="warning",
                server_header=False,
            )
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, setattr, server, "should_exit", True)
        with _listening(config, token[1] if token else None) as listening:
            await server.serve(sockets=[listening])
    finally:
        await store.close()
