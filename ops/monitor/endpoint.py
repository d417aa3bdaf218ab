"""The Prometheus endpoint of one process: what it last reported, its memory and CPU time, and what libraries add."""

import importlib.util
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ops.monitor.known import Values
from ops.runfolder import write_atomically
from store.errors import VergeError

FOLDER = "metrics"
"""Of a run folder: one file per endpoint, as `file_sd_configs` of Prometheus reads them."""


class Reported:
    """The newest metrics of a process, for another thread to read."""

    def __init__(self) -> None:
        self._values: dict[str, Mapping[str, float]] = {}

    def take(self, values: Values) -> None:
        """Replace those of the same names."""
        self._values = {**self._values, **values}

    def newest(self) -> Values:
        """All of them, which no later `take` changes."""
        return self._values


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True  # one that reads slowly holds up neither others nor the process's end


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """A scrape every few seconds is not worth a line."""


@contextmanager
def endpoint(run_folder: Path, run: str, process: str, host: str, port: int) -> Iterator[Callable[[Values], None]]:
    """Answer Prometheus at `host`, `port` from a thread of its own, for as long as the context lasts.

    Args:
        process: `actor-0`, `learner` …: the endpoint is told in `metrics/<process>.json` of the run folder.
        port: 0 for any that is free.

    Returns:
        What takes the newest values.

    Raises:
        VergeError: the address cannot be listened on, or prometheus_client is not installed.
    """
    if importlib.util.find_spec("prometheus_client") is None:
        raise VergeError("the [metrics] of a process need prometheus_client: pip install 'verge-rl[serve]'")
    from prometheus_client import REGISTRY, CollectorRegistry, make_wsgi_app
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

    from ops.monitor.families import Families

    reported = Reported()

    class Everything(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from Families(run, reported.newest()).collect()
            yield from REGISTRY.collect()  # the process, and what vLLM says of its engine

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Everything())
    answer = make_wsgi_app(registry)

    def plain(environ: dict[str, Any], start_response: Any) -> Any:
        # In OpenMetrics, prometheus_client would write vLLM's names without their colon for some scrapers.
        return answer(environ | {"HTTP_ACCEPT": "text/plain"}, start_response)

    try:
        server = make_server(host, port, plain, _Server6 if ":" in host else _Server, _Quiet)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise VergeError(
            f"metrics.host {host}, port {port} cannot be listened on: {reason}; set 0 for a free port"
        ) from None
    reached = socket.gethostname() if host in ("0.0.0.0", "::", "") else host  # noqa: S104 - compared, not bound
    target = f"{f'[{reached}]' if ':' in reached else reached}:{server.server_port}"
    note = run_folder / FOLDER / f"{process}.json"
    with suppress(OSError):  # a folder that is read-only needs no note: whoever made it so knows the port
        note.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(note, json.dumps([{"targets": [target], "labels": {"process": process}}]))
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    print(f"{process}: metrics at http://{target}/metrics", file=sys.stderr, flush=True)
    try:
        yield reported.take
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        with suppress(OSError):
            note.unlink()
