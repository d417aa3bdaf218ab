"""Export and import: the facts of a run in one file, and the same answers from the run that is filled from it."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest

from ops.cli import main
from store import statefile
from store.audit import audit
from store.backup import export_run, import_run
from store.client import Store
from store.errors import VergeError
from store.evaluations import Round, Tally
from store.mirror import Mirror
from store.queries import Gate, changes, evaluations, list_problems, problem_history, summary
from store.server import EmbeddedServer
from store.statefile import StateWriter
from store.wire import Manifest
from tests.store.scripted import META, Opened, group, play, problems

GATE = Gate()
WEIRD = ["easy", "a:b:{c}", "\x00 日本語\n", "never tried"]


async def lived(store: Store) -> None:
    """A run with something under every key: used, live, refused and open; weights and dynamics."""
    await store.add_problems(problems(*WEIRD))
    for version in range(3):
        await store.announce(Manifest(version, f"/w/{version}", "ab" * 32, 9, version, 1.5))
        await store.record_dynamics({"step": version, "entropy": 1 / 3})
    await store.issue(WEIRD[:3] * 4, limit=100)
    tickets = await store.take("actor", 10)
    for number, ticket in enumerate(tickets[:8]):
        await store.commit("actor", group(ticket, [number % 2, 1, 0], version=number % 3))
    await store.refuse("actor", tickets[8], "scripted", errors=2)
    await store.use([ticket.id for ticket in tickets[:4]], step=1)
    await store.retire([ticket.id for ticket in tickets[:2]], "used")
    await store.retire([tickets[4].id], "expired")
    await store.beat("actor", {"engine": "scripted"})
    await store.add_held_out(problems("h", WEIRD[2]))
    for version in (0, 2):
        claim = await store.claim_round(version, 1)
        assert claim is not None
        if version == 0:
            tallies = (Tally("h", 8, 1, 1, 0, 0, 24, 9.5), Tally(WEIRD[2], 6, 2, 2, 1, 2, 18, 1 / 3))
            await store.finish_round(claim, Round(0, 0, "actor", 1.5, 2.5, 8, tallies))


async def answers(store: Store) -> dict[str, Any]:
    """Every question about a run, without its name and the leases of its live actors."""
    whole = await summary(store, GATE)
    del whole["run"], whole["tickets"]["leased"]
    pool = await store.live_groups()
    payloads = await store.fetch([entry.id for entry, _, _ in pool])
    return {
        "meta": await store.meta(),
        "summary": whole,
        "problems": await list_problems(store, GATE, what_if=Gate(k=256)),
        "histories": [await problem_history(store, name, GATE) for name in WEIRD],
        "changes": await changes(store, 0, 2),
        "log": await store.entries(),
        "pool": pool,
        "tokens": {name: made and [item.token_ids.tolist() for item in made.completions]
                   for name, made in payloads.items()},
        "manifests": await store.manifests(),
        "dynamics": await store.dynamics_history(10),
        "refusals": await store.refusals(),
        "rounds": await store.rounds(),
        "evaluations": await evaluations(store, [1, 4]),
        "held out": [await store.held_out_problem(name) for name in await store.held_out_ids()],
    }  # fmt: skip


async def another(store: Store, opened: Opened, name: str = "imported") -> Store:
    """A client of a run that does not exist yet, on the same server."""
    return await Opened(opened.server, f"{store.keys.run}-{name}", opened._stack).connect()


def test_an_imported_run_answers_every_question_alike_and_goes_on(server: EmbeddedServer, tmp_path: Path) -> None:
    async def body(store: Store, opened: Opened) -> None:
        await lived(store)
        records = await export_run(store, tmp_path / "state")
        copy = await another(store, opened)
        assert await import_run(copy, tmp_path / "state") == records
        assert await answers(copy) == await answers(store)
        assert len(await copy.rounds()) == 1
        assert not await copy.round_under_way(), "it belonged to an actor"
        found = await audit(copy)
        assert (found.groups, found.pool) == (8, 5)
        assert (found.duplicated, found.miscounted, found.unbalanced, found.unreadable) == ((), (), (), ())

        await copy.open_run(META)
        mirror = Mirror(copy)
        await mirror.sync()
        taken = await copy.take("other", 10)
        assert len(taken) == 3, "tickets that were leased or waiting are open"
        assert await copy.commit("other", group(taken[0], [1, 1])) == "committed"
        assert len(await mirror.sync()) == 1
        ended = [entry.id for entry in await store.entries()]
        await copy.issue([WEIRD[0]], limit=10**6)
        assert max(ended) < (await copy.take("other", 1))[0].id, "an ended ticket's id never comes again"

    play(server, body)


def test_a_run_is_exported_as_of_one_instant_while_actors_commit(server: EmbeddedServer, tmp_path: Path) -> None:
    async def body(store: Store, opened: Opened) -> None:
        ids = [f"p{i}" for i in range(50)]
        await store.add_problems(problems(*ids))
        writer = await opened.connect()

        async def commit_on() -> None:
            while True:
                await writer.issue(ids, limit=10**6)
                for ticket in await writer.take("a", 50):
                    await writer.commit("a", group(ticket, [1, 0]))
                live = [entry.id for entry, _, _ in await writer.live_groups()]
                await writer.retire(live[:-20], "used")

        working = asyncio.create_task(commit_on())
        try:
            for number in range(5):
                await asyncio.sleep(0.03)
                await export_run(store, tmp_path / "state")
                copy = await another(store, opened, f"copy{number}")
                await import_run(copy, tmp_path / "state")
                found = await audit(copy)
                assert (found.duplicated, found.miscounted, found.unbalanced) == ((), (), ())
        finally:
            working.cancel()
        assert found.groups > 50

    play(server, body)


def test_an_import_into_a_run_that_is_not_empty_is_refused(server: EmbeddedServer, tmp_path: Path) -> None:
    async def body(store: Store, opened: Opened) -> None:
        await export_run(store, tmp_path / "state")
        with pytest.raises(VergeError, match=r"run '\w+' is not empty; import into a run of another name"):
            await import_run(store, tmp_path / "state")
        with pytest.raises(VergeError, match="does not exist"):
            await export_run(await another(store, opened), tmp_path / "none")
        assert not list(tmp_path.glob("none*"))

    play(server, body)


def test_an_import_that_was_cut_short_is_begun_anew(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(store: Store, opened: Opened) -> None:
        await lived(store)
        await export_run(store, tmp_path / "state")
        await export_run(store, tmp_path / "other")
        copy = await another(store, opened)
        await store.link.redis.config_set("maxmemory", 1)
        with pytest.raises(VergeError, match="memory limit"):
            await import_run(copy, tmp_path / "state")
        await store.link.redis.config_set("maxmemory", 0)
        with monkeypatch.context() as cut:
            cut.setattr("store.backup._RECORDS", 3)
            begun = [*statefile.read_state(tmp_path / "state")][:10]
            cut.setattr("store.backup.read_state", lambda _: [*begun, ("x", "y", 0)])
            with pytest.raises(VergeError, match="record x y"):
                await import_run(copy, tmp_path / "state")
        assert await copy.meta() == {}, "a run that is half there does not exist"
        with pytest.raises(VergeError, match=r"an import of another file .* was cut short"):
            await import_run(copy, tmp_path / "other")
        await import_run(copy, tmp_path / "state")
        assert await answers(copy) == await answers(store)

    play(server, body)


def damaged(whole: bytes) -> dict[str, tuple[bytes, str]]:
    """Files that are not a whole state file, with what their refusal says."""
    newer = msgpack.packb([statefile.MAGIC, statefile.SCHEMA + 1, "run"]) + whole
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    return {
        "empty": (b"", "not a file that `verge state export` wrote"),
        "foreign": (b"PK\x03\x04" + bytes(100), "not a file that"),
        "text": (b'{"state": 1}', "not a file that"),
        "newer": (newer, r"has schema 2, this version of Verge reads up to 1; use a newer Verge"),
        "truncated": (whole[:-1], "truncated or damaged"),
        "cut in half": (whole[: len(whole) // 2], "truncated or damaged"),
        "flipped bit": (bytes(flipped), "truncated or damaged"),
        "longer": (whole + b"\0", "truncated or damaged"),
    }


def test_a_file_that_is_not_whole_is_refused_in_one_line(tmp_path: Path) -> None:
    with StateWriter(tmp_path / "whole", "run") as out:
        for number in range(20):
            out.write("hash", f"h{number}", [b"field", b"value"])
    assert [name for _, name, _ in statefile.read_state(tmp_path / "whole")] == [f"h{i}" for i in range(20)]
    for name, (data, why) in damaged((tmp_path / "whole").read_bytes()).items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(VergeError, match=why) as refused:
            statefile.check_state(path)
        assert "\n" not in str(refused.value)
    with pytest.raises(VergeError, match="No such file"):
        statefile.check_state(tmp_path / "absent")
    with pytest.raises(VergeError, match="cannot be written"):
        StateWriter(tmp_path / "no" / "folder", "run")


def test_a_failed_export_leaves_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with StateWriter(path, "run"):
        pass
    earlier = path.read_bytes()
    with pytest.raises(TypeError), StateWriter(path, "run") as out:
        out.write("hash", "meta", object())
    assert path.read_bytes() == earlier
    assert list(tmp_path.iterdir()) == [path]


CONFIG = """
name = "{name}"
folder = "{folder}"
model.path = "tiny"
problems.source = "builtin:countdown"
sampling.max_completion_tokens = 8
actor.context_tokens = 32
learner.steps = 1
"""


def test_the_commands_move_a_run_from_one_folder_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def verge(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["verge", "state", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return str(ended.value.code or "") + capsys.readouterr().out

    for name in ("old", "new"):
        (tmp_path / f"{name}.toml").write_text(CONFIG.format(name=name, folder=tmp_path / name))
    with EmbeddedServer(tmp_path / "old") as server:

        async def live() -> None:
            store = await Store.connect(server.url, "old", server.password)
            await store.open_run(META)
            await lived(store)
            await store.close()

        asyncio.run(live())
    file, old, new = (str(tmp_path / name) for name in ("state", "old.toml", "new.toml"))
    assert "records" in verge("export", file, old)
    assert "records imported" in verge("import", file, new)
    assert verge("list", new, "--json") == verge("list", old, "--json")
    assert "run 'new' is not empty" in verge("import", file, new)
    assert "is not a file that `verge state export` wrote" in verge("import", old, new)
