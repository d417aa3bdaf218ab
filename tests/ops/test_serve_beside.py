"""The page beside a run: off when it is off, and given up aloud when a person must act, without the run."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ops.config import fingerprint, parse_config
from ops.serve.beside import PageBeside
from store.client import Store
from store.server import EmbeddedServer
from tests.ops.serving import META, ROOT, make_run

SETTINGS = {"name": "served", "model": {"path": "x"}, "problems": {"source": "p"}}


def test_a_page_that_is_off_is_not_started(tmp_path: Path) -> None:
    said: list[str] = []
    page = PageBeside(parse_config({**SETTINGS, "serve": {"enabled": False}}, "a test"), tmp_path, said.append)
    page.start()
    page.keep(time.monotonic())
    page.stop()
    assert said == []
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_start_is_given_up_once_with_the_reason(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", tmp_path)
    (folder / "logs").mkdir()
    said: list[str] = []
    page = PageBeside(parse_config(SETTINGS, "a test"), folder, said.append)
    page.start()
    deadline = time.monotonic() + 60
    while not said:
        assert time.monotonic() < deadline
        page.keep(time.monotonic())
        time.sleep(0.02)
    page.keep(time.monotonic())
    assert said == [
        f"the page ended with status 1: run folder {folder} has no store: the run has not been started yet; "
        f"the run goes on without it (log: {folder / 'logs' / 'serve.log'})"
    ]
    page.stop()


def test_a_page_of_a_fleet_waits_for_the_run_that_a_learner_opens(tmp_path: Path) -> None:
    async def open_run(url: str, password: str | None) -> None:
        store = await Store.connect(url, "served", password)
        try:
            await store.open_run(META)
        finally:
            await store.close()

    with EmbeddedServer(tmp_path / "elsewhere") as server:
        fleet = {"url": server.url, "password_file": server.info.password_file}
        folder = make_run(tmp_path / "run", tmp_path, store=fleet)
        command = [sys.executable, "-m", "ops.cli", "serve", str(folder)]
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            said = "serve: the store has no run 'served' yet; waiting for the learner that opens it\n"
            assert process.stderr.readline() == said
            asyncio.run(open_run(server.url, server.password))
            assert process.stderr.readline().startswith("serve: run served at http://127.0.0.1:")
        finally:
            process.terminate()
            process.communicate()


@pytest.mark.parametrize("enabled", [True, False])
def test_whether_a_page_is_served_may_change_when_a_run_is_resumed(enabled: bool) -> None:
    base = fingerprint(parse_config(SETTINGS, "a test"))
    assert fingerprint(parse_config({**SETTINGS, "serve": {"enabled": enabled, "port": 80}}, "b test")) == base


def test_a_run_without_a_page_needs_none_of_its_packages() -> None:
    code = "import sys, ops.launcher; print({'fastapi', 'starlette', 'jinja2'} & sys.modules.keys())"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
