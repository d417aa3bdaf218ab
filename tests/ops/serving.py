"""A run on a real store, scripted group by group, and the real server over it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ops.config import parse_config
from ops.runfolder import enter_run_folder
from store.client import Store
from store.evaluations import Round, Tally
from store.wire import Completion, Manifest, Problem, RolloutGroup, Span, Ticket, Verdict

ROOT = Path(__file__).parents[2]
SCRIPT = "<script>window.pwned=1</script>"
META = {"fingerprint": "f00", "gamma": "0.97", "group_size": "4"}
HARD, EASY, LOST, MIXED, NEW = "hard", "easy", "lost", f"{SCRIPT}/../\"'&?#%ü", "new"
NEWEST = 6
PROBLEMS = [
    Problem(HARD, (
        {"role": "system", "content": f"be brief {SCRIPT}"}, {"role": "user", "content": "what is hard?"},
    ), "exact", "42", ("test",)),
    Problem(EASY, "what is easy?", "exact", {"nested": [SCRIPT, None, 1.5]}, ()),
    Problem(LOST, "what is lost?", "exact", "42", (SCRIPT,)),
    Problem(MIXED, f"{SCRIPT} what is </pre> mixed? ü→😀", "exact", SCRIPT, ()),
    Problem(NEW, "what is new?", "exact", "42", ()),
]  # fmt: skip
GROUPS = [
    (HARD, 0, 0), (EASY, 4, 0), (LOST, 1, 0), (MIXED, 0, 0),
    (HARD, 0, 1), (MIXED, 0, 2), (LOST, 0, 3), (EASY, 4, 4), (MIXED, 2, 4), (HARD, 0, 5), (MIXED, 3, 6),
]  # fmt: skip
"""(problem, correct of 4, version that wrote its end), in the order in which they are committed."""
SAID = f"2+2=4 {SCRIPT} ü→😀"


def write_tokenizer(folder: Path) -> Path:
    """A tokenizer whose tokens are the 256 bytes, as a model's folder has it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    bytes_only.save(str(folder / "tokenizer.json"))
    return folder


def ids_of(folder: Path, text: str) -> list[int]:
    """The tokens of a text."""
    return list(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids)


def said_group(ticket: Ticket, ids: Sequence[int], correct: int, version: int) -> RolloutGroup:
    """Four completions that say the same; all but the first 7 tokens were written by `version`, those by the one
    before."""
    tokens, older = np.array(ids, np.int32), max(version - 1, 0)
    spans = (Span(older, 0, 7), Span(version, 7, len(ids))) if older != version else (Span(version, 0, len(ids)),)
    logprobs = np.full(len(ids), -0.5, np.float32)
    logprobs[0] = np.nan
    completions = tuple(
        Completion(tokens, logprobs, spans, float(i < correct), Verdict.CORRECT if i < correct else Verdict.WRONG)
        for i in range(4)
    )
    return RolloutGroup(ticket.id, ticket.problem_id, np.arange(5, dtype=np.int32), completions)


async def commit(store: Store, problem: str, ids: Sequence[int], correct: int, version: int) -> str:
    """Roll out one group; returns its id."""
    await store.issue([problem], limit=10**6)
    (ticket,) = await store.take("a", 1)
    assert await store.commit("a", said_group(ticket, ids, correct, version)) == "committed"
    return ticket.id


ROUNDS = {0: (4, 0, 0), 3: (6, 8, 0), 6: (20, 32, 1)}
"""Version → how many of 64 completions of each held-out problem were right, in the evaluations."""


async def evaluate(store: Store, version: int, correct: Sequence[int]) -> None:
    """One finished evaluation round."""
    claim = await store.claim_round(version, 1)
    assert claim is not None
    tallies = tuple(Tally(f"held {i}", 64, c, min(c, 3), 2, 0, 640, 320.0) for i, c in enumerate(correct))
    done = Round(version, claim.step, f"actor {SCRIPT}", version + 0.5, version + 2.0, 64, tallies)
    assert await store.finish_round(claim, done)


async def fill(store: Store, model: Path) -> list[str]:
    """Play GROUPS over seven versions; returns their ids. The first three have left the pool, the fourth was drawn."""
    await store.open_run(META)
    await store.set_limits(1000, 1 << 30)
    await store.add_problems(PROBLEMS)
    await store.add_held_out([Problem(f"held {i}", "what is held out?", "exact", "42") for i in range(3)])
    ids = ids_of(model, SAID)
    groups = []
    for version in range(NEWEST + 1):
        await store.announce(Manifest(version, str(model), "00", 1, version, float(version)))
        for problem, correct, written in GROUPS:
            if written == version:
                groups.append(await commit(store, problem, ids, correct, version))
        if version in ROUNDS:
            await evaluate(store, version, ROUNDS[version])
    await store.use(groups[:3], 1)
    await store.retire(groups[:3], "used")
    await store.use(groups[3:4], 2)
    for step in range(1, NEWEST + 1):
        await store.record_dynamics({
            "step": step, "version": step, "reward": 0.1 * step, "solve_rate": 0.4, "entropy": 1.0, "alpha": 2.25,
            "delta": 1.0, "kl": 0.01, "ess": 0.9, "lag_mean": 1.0, "lag_max": 2, "lag_groups_1": 3, "step_s": 1.0,
            "wait_s": 1.0, "idle_share": 0.5, "target_entropy": float("nan"),
        })  # fmt: skip
    await store.beat(f"actor {SCRIPT}", {"version": 6, "tickets": 2, "tokens_per_s": 12.5, "completions": 44})
    return groups


def make_run(folder: Path, model: Path, name: str = "served", **sections: Any) -> Path:
    """A run folder, as `verge up` leaves it, without its store."""
    settings = {"name": name, "folder": str(folder), "model": {"path": str(model)}, "problems": {"source": "p.jsonl"}}
    enter_run_folder(parse_config({**settings, **sections}, "a test"))
    return folder


@dataclass(frozen=True, slots=True)
class Served:
    """A running `verge serve`."""

    url: str
    folder: Path
    process: "subprocess.Popen[str]"
    client: httpx.Client

    def get(self, path: str, **parameters: Any) -> httpx.Response:
        """What it answers."""
        return self.client.get(path, params=parameters or None)


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Served]:
    """The real process, as its user starts it; what it says is in serve.log beside the run."""
    log = folder / "serve.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "ops.cli", "serve", str(folder), *options],
            cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, f"the server does not answer: {log.read_text()}"
            if " at http" in log.read_text():
                port = json.loads((folder / "serve" / "server.json").read_text())["port"]
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60):
                    break
            time.sleep(0.05)
        url = f"http://127.0.0.1:{port}/"
        with httpx.Client(base_url=url, timeout=60) as client:
            yield Served(url, folder, process, client)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
