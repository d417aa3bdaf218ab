"""Who may look: this machine, or whoever has the token; and nobody can make the server do more than answer."""

import asyncio
import itertools
import json
import shutil
import signal
import socket
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from ops.config import RunConfig, parse_config
from ops.gate import gate_of
from ops.serve import process
from ops.serve.secret import is_loopback, token_for
from store.errors import VergeError
from store.server import EmbeddedServer, live_server
from tests.ops.conftest import READER, Scripted
from tests.ops.serving import HARD, MIXED, ROOT, Served, fill, make_run, serving

TOKEN = "correct horse battery staple"
EVERYTHING = (
    "", "problems", f"problem?id={HARD}", "api/summary", "api/problems", f"api/problem?id={HARD}", "api/changes",
    "api/dynamics", "api/weights", "api/evaluations", "openapi.json", "metrics",
)  # fmt: skip
EVENTS = ("events/home", "events/problems", f"events/problem?id={HARD}")


def first_event(url: str, **options: Any) -> tuple[int, str]:
    """(status, the first event) of a stream."""
    with httpx.stream("GET", url, timeout=60, **options) as answer:
        if answer.status_code != 200:
            return answer.status_code, answer.read().decode()
        lines = answer.iter_lines()
        return 200, next(lines) + "\n" + next(lines)


def raw_answer(served: Served, target: str) -> bytes:
    """The first line of the answer to a request whose target is sent as it is."""
    with socket.create_connection(("127.0.0.1", urlsplit(served.url).port), timeout=60) as raw:
        with suppress(ConnectionError):  # it may hang up before it has read all
            raw.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return raw.recv(65536).split(b"\r\n")[0]


def test_off_this_machine_nothing_is_answered_without_the_token(tmp_path: Path, scripted: Scripted) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(f"{TOKEN}\nand a comment\n")
    store = {"url": scripted.store.url, "password_file": str(scripted.folder / "store" / "password")}
    make_run(tmp_path, scripted.model, store=store, serve={"host": "0.0.0.0", "token_file": str(token_file)})
    with serving(tmp_path) as server:
        for path in (*EVERYTHING, *EVENTS, f"api/group?id={scripted.groups[-1]}"):
            assert server.get(path).status_code == 401, path
            for wrong in ("wrong", TOKEN + "x", TOKEN[:-1]):
                refused = server.client.get(path, headers={"Authorization": f"Bearer {wrong}"})
                assert refused.status_code == 401, path
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        for path in EVERYTHING:
            assert server.client.get(path, headers=bearer).status_code == 200, path
        assert first_event(server.url + "events/home", headers=bearer)[1].startswith("event: sections\ndata: {")

        with httpx.Client(base_url=server.url, timeout=60, headers={"Accept": "text/html"}) as person:
            sent_away = person.get("")
            assert (sent_away.status_code, sent_away.headers["location"]) == (303, "/login")
            assert person.post("login", data={"token": "wrong"}).status_code == 403
            assert person.get("static/page.css").status_code == 200
            let_in = person.post("login", data={"token": TOKEN})
            assert let_in.status_code == 303
            assert "HttpOnly" in let_in.headers["set-cookie"]
            assert "SameSite=strict" in let_in.headers["set-cookie"]
            assert "All problems" in person.get("").text
        said = (tmp_path / "serve.log").read_text()
        assert str(token_file) in said
        assert TOKEN not in said


def config_at(folder: Path, **serve: Any) -> RunConfig:
    settings = {"name": "r", "folder": str(folder), "model": {"path": "tiny"}, "problems": {"source": "p.jsonl"}}
    return parse_config({**settings, "serve": serve}, "a test")


def test_a_token_is_made_once_for_its_owner_alone_and_a_short_one_refused(tmp_path: Path) -> None:
    assert token_for(config_at(tmp_path)) is None
    found = token_for(config_at(tmp_path, host="192.0.2.1"))
    assert found is not None
    token, path = found
    assert path == tmp_path / "serve" / "token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(token) >= 40
    assert token_for(config_at(tmp_path, host="192.0.2.1")) == found
    (tmp_path / "short").write_text("password1\n")
    with pytest.raises(VergeError, match="holds a token of 9 characters but must have ≥ 16"):
        token_for(config_at(tmp_path, host="::", token_file=str(tmp_path / "short")))
    (tmp_path / "short").write_text("pässword pässword\n")
    with pytest.raises(VergeError, match="all of ASCII"):
        token_for(config_at(tmp_path, host="::", token_file=str(tmp_path / "short")))
    with pytest.raises(VergeError, match="No such file"):
        token_for(config_at(tmp_path, host="::", token_file=str(tmp_path / "absent")))


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("example.org", False), ("127.0.0.1.example.org", False), ("", False)],
)  # fmt: skip
def test_what_counts_as_this_machine(host: str, own: bool) -> None:
    assert is_loopback(host) is own


@pytest.mark.parametrize(
    "host", ["example.org", "127.0.0.1.example.org", "localhost@example.org", "", "[::2]:80", "[::", "a b"]
)
def test_a_request_that_names_another_host_is_refused(served: Served, host: str) -> None:
    answer = served.client.get("api/summary", headers={"Host": host})
    assert answer.status_code in (400, 421)
    assert "committed" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:80", "[::1]:80"])
def test_this_machine_is_known_by_all_its_names(served: Served, host: str) -> None:
    assert served.client.get("api/summary", headers={"Host": host}).status_code == 200


def test_every_answer_forbids_scripts_of_others_and_being_framed(served: Served) -> None:
    for path in ("", "api/summary", "static/page.js", "nothing", "login"):
        headers = served.get(path).headers
        assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"], path
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


@pytest.mark.parametrize(
    "path",
    ["/static/../config.json", "/static/..%2fconfig.json", "/static/%2e%2e/%2e%2e/config.json", "//etc/passwd",
     "/static//etc/passwd", "/static/page.css/../../templates/base.html"],
)  # fmt: skip
def test_no_path_leads_out_of_the_page(served: Served, path: str) -> None:
    assert b" 404 " in raw_answer(served, path)


def test_a_request_may_not_be_large_nor_change_anything(served: Served) -> None:
    large = b"token=" + b"x" * 5000
    assert served.client.post("login", content=large).status_code == 413
    assert served.client.post("login", content=iter([large])).status_code == 413
    assert b" 400 " in raw_answer(served, "/?" + "x" * 300_000)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for path in ("", "api/problems", "api/summary", "metrics"):
            assert served.client.request(method, path).status_code == 405
    assert served.get("api/summary").status_code == 200


HALF_REQUESTS = {
    "nothing": b"",
    "half a head": b"GET /events/home HTTP/1.1\r\nHost: localhost\r\n",
    "half a body": b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\ntoken=",
    "half a second request": b"GET /api/summary HTTP/1.1\r\nHost: localhost\r\n\r\nGET /api",
}


def test_half_sent_requests_are_given_up_so_that_they_cannot_take_every_connection(served: Served) -> None:
    from ops.serve.process import _CONNECTIONS

    address = ("127.0.0.1", urlsplit(served.url).port)
    slow: list[socket.socket] = []
    stream = socket.create_connection(address, timeout=60)
    try:
        stream.sendall(b"GET /events/home HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert stream.recv(12) == b"HTTP/1.1 200"
        for half in itertools.islice(itertools.cycle(HALF_REQUESTS.values()), _CONNECTIONS + 8):
            raw = socket.create_connection(address, timeout=60)
            raw.sendall(half)
            slow.append(raw)
        for raw in slow:
            with suppress(ConnectionError):
                while raw.recv(65536):  # until the server hangs up
                    pass
        assert served.get("api/summary").status_code == 200
        stream.setblocking(False)
        with suppress(BlockingIOError):  # all that it has sent, and no end: a stream is no request
            while True:
                assert stream.recv(65536)
    finally:
        for raw in (*slow, stream):
            raw.close()


def test_clients_that_do_not_read_their_stream_hold_nobody_up(served: Served) -> None:
    address = ("127.0.0.1", urlsplit(served.url).port)
    idle = [socket.create_connection(address, timeout=60) for _ in range(30)]
    try:
        for raw in idle:
            raw.sendall(b"GET /events/home HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert served.get("api/summary").status_code == 200
        assert served.get("").status_code == 200
    finally:
        for raw in idle:
            raw.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS, to a server that speaks none
        b"GET\r\n\r\n",
        b"\r\n\r\n\r\n\x00\xff\xfe",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
    ],
)
def test_what_is_no_request_is_refused_and_the_server_goes_on(served: Served, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", urlsplit(served.url).port), timeout=60) as connection:
        with suppress(ConnectionError):
            connection.sendall(raw)
        answer = b""
        with suppress(ConnectionError):
            while part := connection.recv(65536):
                answer += part
    assert not answer.startswith(b"HTTP/1.1 2"), answer[:80]
    assert b" 500 " not in answer.split(b"\r\n")[0]
    assert served.get("api/summary").status_code == 200


def test_more_pages_than_the_server_keeps_up_to_date_are_refused_and_those_that_close_make_room(served: Served) -> None:
    from ops.serve.pages import MAX_STREAMS

    url = served.url + "events/home"
    limits = httpx.Limits(max_connections=None)
    with httpx.Client(timeout=60, limits=limits) as client:
        streams = [client.stream("GET", url) for _ in range(MAX_STREAMS)]
        lines = [stream.__enter__().iter_lines() for stream in streams]
        assert {next(line) for line in lines} == {"event: sections"}
        assert first_event(url) == (503, f'{{"detail":"{MAX_STREAMS} pages are kept up to date already"}}')
        for stream in streams:
            stream.__exit__(None, None, None)
    deadline = time.monotonic() + 60
    while first_event(url)[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_whoever_may_only_read_the_store_can_serve_all_of_it(served: Served, scripted: Scripted) -> None:
    for path in (*EVERYTHING, f"api/group?id={scripted.groups[-1]}"):
        assert served.get(path).status_code == 200, path
    for path in EVENTS:
        assert first_event(served.url + path)[0] == 200, path
    assert READER[1] not in (served.folder / "serve.log").read_text()


def test_while_the_store_is_away_the_server_says_so_and_then_goes_on(tmp_path: Path, scripted: Scripted) -> None:
    import os

    from store.client import Store

    folder = make_run(tmp_path / "run", scripted.model)
    with EmbeddedServer(folder) as server:

        async def filled() -> None:
            store = await Store.connect(server.url, "served", server.password)
            await fill(store, scripted.model)
            await store.close()

        asyncio.run(filled())
        with serving(folder) as page:
            assert page.get("api/summary").status_code == 200
            os.kill(server.pid, signal.SIGKILL)
            time.sleep(1.1)  # what was read stays good for a second
            away = page.get("api/problems")
            assert away.status_code == 503
            assert "has not answered" in away.json()["detail"]
            assert page.get("metrics").status_code == 503
            name, data = first_event(page.url + "events/home")[1].split("\n")
            assert name == "event: trouble"
            assert "has not answered" in json.loads(data.removeprefix("data: "))["message"]
            server.start()
            deadline = time.monotonic() + 60
            while page.get("api/summary").status_code != 200:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert page.get("api/problem", id=MIXED).json()["total"] == 4


def test_a_finished_run_is_served_from_its_folder_and_left_as_it_was(tmp_path: Path, scripted: Scripted) -> None:
    folder = make_run(tmp_path / "run", scripted.model)
    shutil.copytree(scripted.folder / "store", folder / "store", ignore=shutil.ignore_patterns("lock", "server.json"))
    with serving(folder) as page:
        assert page.get("api/summary").json()["groups"]["committed"] == 11
        assert live_server(folder) is not None
        first_port = urlsplit(page.url).port
        page.process.send_signal(signal.SIGTERM)
        assert page.process.wait(60) == 0
        assert live_server(folder) is None
    with serving(folder) as page:
        assert urlsplit(page.url).port == first_port, "an open page finds it again"


def test_the_address_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(VergeError, match=f"serve.port {port} cannot be listened on"):
            process.listen(config_at(tmp_path, port=port))
        (tmp_path / "serve").mkdir()
        (tmp_path / "serve" / "server.json").write_text(json.dumps({"port": port}))
        with process.listen(config_at(tmp_path)) as free:
            assert free.getsockname()[1] != port
    with pytest.raises(VergeError, match=r"serve\.port is 70000"):
        config_at(tmp_path, port=70000)
    assert process.address("::1", 80) == "http://[::1]:80/"
    monkeypatch.setattr(process, "_PACKAGES", ("json", "no_such_package"))
    with pytest.raises(VergeError, match="the page needs no_such_package"):
        process.serve(tmp_path)


def test_a_run_that_was_never_started_is_refused_in_one_line(tmp_path: Path, scripted: Scripted) -> None:
    folder = make_run(tmp_path / "run", scripted.model)
    ended = subprocess.run(
        ["python", "-m", "ops.cli", "serve", str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 1
    assert ended.stderr == f"verge: run folder {folder} has no store: the run has not been started yet\n"


def test_the_gate_that_is_shown_is_the_one_the_learner_uses(scripted: Scripted) -> None:
    from learner.opinions import Opinions
    from store.mirror import Mirror
    from store.queries import problem_columns

    async def compare(config: RunConfig) -> None:
        store = await scripted.connect()
        try:
            mirror = Mirror(store)
            await mirror.sync()
            learners = Opinions(config.objective, config.gating, config.draw).gates(mirror, 6)
            shown = await problem_columns(store, gate_of(config))
            assert shown["gate"].tolist() == learners.gate.tolist()
            assert shown["evidence_a"].tolist() == learners.evidence_a.tolist()
        finally:
            await store.close()

    base = {"name": "r", "model": {"path": "tiny"}, "problems": {"source": "p.jsonl"}}
    for objective in (
        {},
        {"params": {"k": 64, "tau": 0.001, "prior_a": 0.5}},
        {"advantage": "bbg", "params": {"evidence": "pooled", "k": 3}},
    ):
        config = parse_config({**base, "objective": objective, "gating": {"k": 16, "prior_b": 2.0}}, "a test")
        asyncio.run(compare(config))
    # The k of another advantage is not the gate's.
    passk = parse_config({**base, "objective": {"advantage": "passk", "params": {"k": 2}}}, "a test")
    assert gate_of(passk).k == 8
