"""Weights from the learner to the engine: in full, and as what changed."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from actors.config import ActorConfig, EvaluationConfig, ProblemsConfig, SamplingConfig, VerifierConfig
from actors.engine import Sample
from actors.loop import Actor, ActorSettings
from actors.problems import load_problems
from actors.weights import CannotRead, Snapshots
from learner.publish import Publisher
from learner.store_thread import StoreThread
from store.client import Store
from store.server import EmbeddedServer
from store.snapshots import DELTA_FILE, WEIGHTS_FILE
from tests.end_to_end.live import LiveEngine
from tests.end_to_end.test_engine import LOGPROB_TOLERANCE, learner_logprobs, prompt_ids


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def line(server: EmbeddedServer, tmp_path: Path) -> Iterator[StoreThread]:
    with StoreThread(server.url, tmp_path.name, server.password) as connected:
        yield connected


class Learner:
    """A model whose weights move a little, some of them, and are published as deltas in bf16."""

    def __init__(self, line: StoreThread, model: Path, folder: Path, keep: int = 2, full_every: int = 4) -> None:
        self.line = line
        self.publisher = Publisher(line, folder / "weights", model, keep, torch.bfloat16, full_every)
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        self.version = 0

    def publish(self) -> Path:
        """Move one weight in twenty and publish; the snapshot's folder."""
        self.version += 1
        torch.manual_seed(self.version)
        with torch.no_grad():
            for parameter in self.model.parameters():
                moved = torch.rand_like(parameter) < 0.05
                parameter.mul_(1 + 0.1 * moved * torch.randn_like(parameter))
        self.publisher.begin(self.version, self.version, self.model.named_parameters())
        self.publisher.finish()
        manifest = self.line.call(self.line.store.manifest())
        assert manifest.version == self.version
        return Path(manifest.path)

    def formats(self) -> list[tuple[int, str, int]]:
        return [(m.version, m.format, m.base) for m in self.line.call(self.line.store.manifests())]


@pytest.fixture
def served(live: LiveEngine) -> Iterator[LiveEngine]:
    """The session's engine, which has the base model again afterwards."""
    yield live
    live.run(live.engine.update(live.engine.version + 1, live.model))


@pytest.fixture
def learner(line: StoreThread, tiny_model: Path, tmp_path: Path) -> Iterator[Learner]:
    learner = Learner(line, tiny_model, tmp_path)
    yield learner
    learner.publisher.close()


def follow(learner: Learner, snapshots: Snapshots, after: int) -> Path:
    """The folder of the newest version as an actor gets it; its weights are the learner's, bit for bit."""
    found = learner.line.call(snapshots.newest(after, 0))
    assert found is not None
    assert found.manifest.version == learner.version
    loaded = AutoModelForCausalLM.from_pretrained(found.folder)
    assert loaded.dtype == torch.bfloat16
    for ours, theirs in zip(loaded.parameters(), learner.model.parameters(), strict=True):
        assert torch.equal(ours.view(torch.int16), theirs.view(torch.int16))
    return found.folder


def test_deltas_follow_a_full_snapshot_and_are_much_smaller(learner: Learner) -> None:
    folders = [learner.publish() for _ in range(6)]
    assert learner.formats() == [
        (1, "full", -1), (2, "delta", 1), (3, "delta", 2), (4, "delta", 3), (5, "full", -1), (6, "delta", 5),
    ]  # fmt: skip
    assert (
        learner.publisher.size_ratio
        == (folders[5] / DELTA_FILE).stat().st_size / (folders[4] / WEIGHTS_FILE).stat().st_size
    )
    assert learner.publisher.size_ratio < 0.1  # 5 % of the words, 3 bytes of 2 each


def test_an_actor_follows_deltas_and_catches_up_on_those_it_missed(learner: Learner, tmp_path: Path) -> None:
    snapshots = Snapshots(learner.line.store, tmp_path / "scratch")
    first = learner.publish()
    assert follow(learner, snapshots, -1) == first
    learner.publish()
    assert follow(learner, snapshots, 1).parent == tmp_path / "scratch"
    for _ in range(2):
        learner.publish()
    follow(learner, snapshots, 2)
    assert [folder.name for folder in (tmp_path / "scratch").iterdir()] == ["v0000004"]
    new_actor = Snapshots(learner.line.store, tmp_path / "other")
    follow(learner, new_actor, -1)
    for _ in range(2):  # past the next full one
        learner.publish()
    follow(learner, snapshots, 4)


def test_an_old_full_snapshot_stays_while_a_delta_needs_it_or_an_actor_reads_from_it(learner: Learner) -> None:
    weights = learner.publish().parent
    for _ in range(5):
        learner.publish()
    names = [f"v{version:07d}" for version in range(1, 8)]
    assert sorted(folder.name for folder in weights.iterdir()) == names[4:6], "5 is full, and two are kept"
    learner.line.call(learner.line.store.beat("reading", {"version": 5, "reads_from": 6}))
    for _ in range(5):
        learner.publish()
    assert sorted(folder.name for folder in weights.iterdir())[0] == names[4], "6 begins from 5"
    learner.line.call(learner.line.store.beat("reading", {"version": 11}))
    learner.publish()
    assert names[4] not in {folder.name for folder in weights.iterdir()}


def test_a_broken_chain_is_said_in_one_line_and_the_next_full_snapshot_mends_it(
    learner: Learner, tmp_path: Path
) -> None:
    snapshots = Snapshots(learner.line.store, tmp_path / "scratch")
    learner.publish()
    follow(learner, snapshots, -1)
    delta = learner.publish() / DELTA_FILE
    delta.write_bytes(delta.read_bytes()[:-5])
    with pytest.raises(CannotRead, match=r"^version 2 cannot be rebuilt: weights delta .* is damaged$"):
        learner.line.call(snapshots.newest(1, 0))
    learner.publish()
    with pytest.raises(CannotRead, match="version 3 cannot be rebuilt"):
        learner.line.call(snapshots.newest(1, 0))
    learner.line.call(learner.line.store.beat("actor", {"version": 1, "wants_full": True}))
    learner.publish()
    assert learner.formats()[-1] == (4, "full", -1)
    follow(learner, snapshots, 1)


def test_the_newest_delta_can_be_made_a_whole_folder(learner: Learner, tmp_path: Path) -> None:
    learner.publish()
    folder = learner.publish()
    assert not (folder / WEIGHTS_FILE).exists()
    learner.publisher.complete()
    assert follow(learner, Snapshots(learner.line.store, tmp_path / "scratch"), -1) == folder
    assert (folder / "tokenizer.json").is_file()


def test_an_engine_that_is_fed_deltas_samples_from_the_learners_weights(
    served: LiveEngine, learner: Learner, tmp_path: Path
) -> None:
    snapshots = Snapshots(learner.line.store, tmp_path / "scratch")
    prompt = prompt_ids(served)
    version = served.engine.version
    for _ in range(3):
        learner.publish()
        found = learner.line.call(snapshots.newest(-1, 0))
        assert found is not None
        version += 1
        served.run(served.engine.update(version, found.folder))
        samples = served.run(served.engine.generate(prompt))
        assert {span.version for sample in samples for span in sample.spans} == {version}
        pairs = learner_logprobs(found.folder, prompt, samples)
        assert np.abs(pairs[:, 0] - pairs[:, 1]).max() < LOGPROB_TOLERANCE


async def _update_while_generating(live: LiveEngine, version: int) -> list[list[Sample]]:
    engine = live.engine
    prompts = [prompt_ids(live, f"{number}=56:") for number in range(1111, 1143)]
    groups = [asyncio.create_task(engine.generate(prompt)) for prompt in prompts]
    tokens = engine.load.tokens
    while engine.load.tokens < tokens + 64:
        await asyncio.sleep(0)
    update = asyncio.create_task(engine.update(version, live.model))
    await asyncio.sleep(0)
    late = asyncio.create_task(engine.generate(prompts[0]))
    await update
    return [await group for group in [*groups, late]]


@pytest.fixture
def update_mode(live: LiveEngine) -> Iterator[Callable[[Literal["drain", "restart"]], None]]:
    """Sets what becomes of completions in flight; afterwards it is as it was."""
    yield lambda mode: setattr(live.engine, "update_mode", mode)
    live.engine.update_mode = "keep"


def check_unmixed(groups: list[list[Sample]], version: int) -> list[set[int]]:
    """Every group is whole, no completion mixes versions, and the last, asked for during the update, is of the new one.

    Returns the versions of the other completions.
    """
    assert all(len(group) == 8 and all(sample.complete for sample in group) for group in groups)
    *versions, late = [[{span.version for span in sample.spans} for sample in group] for group in groups]
    assert late == [{version}] * 8
    flat = [of_sample for of_group in versions for of_sample in of_group]
    assert all(len(of_sample) == 1 for of_sample in flat)
    return flat


def test_drained_completions_end_under_the_weights_they_began_with(
    live: LiveEngine, update_mode: Callable[[str], None]
) -> None:
    update_mode("drain")
    before, asked = live.engine.version, live.engine.requests
    groups = live.run(_update_while_generating(live, before + 1))
    assert {before} in check_unmixed(groups, before + 1)
    assert live.engine.requests - asked == len(groups), "none was asked for again"


def test_restarted_completions_are_sampled_again_under_the_new_weights(
    live: LiveEngine, update_mode: Callable[[str], None]
) -> None:
    update_mode("restart")
    for _ in range(5):  # an update that came after every completion shows nothing
        before, asked = live.engine.version, live.engine.requests
        groups = live.run(_update_while_generating(live, before + 1))
        versions = check_unmixed(groups, before + 1)
        if live.engine.requests - asked > len(groups):
            break
    assert live.engine.requests - asked > len(groups), "what was in flight was asked for again"
    assert {before + 1} in versions


def test_an_actor_that_cannot_read_a_snapshot_goes_on_and_is_mended_by_the_full_one_it_asks_for(
    served: LiveEngine, learner: Learner, server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = load_problems(ProblemsConfig(source="builtin:countdown", train_count=32, held_out_count=0)).train
    where = (server.url, tmp_path.name, server.password)
    settings = ActorSettings(
        name="actor", run=where[1], store_url=where[0], store_password=where[2], lease_s=60, patience_s=60,
        payload_ttl_s=600, max_lag=4, model=served.model, actor=ActorConfig(context_tokens=32, max_sequences=64),
        sampling=SamplingConfig(max_completion_tokens=8), verifier=VerifierConfig(), evaluation=EvaluationConfig(),
        seed=0,
    )  # fmt: skip
    old = learner.version = served.engine.version
    learner.publish()
    delta = learner.publish() / DELTA_FILE
    delta.write_bytes(delta.read_bytes()[:-5])

    async def scene() -> None:
        store = await Store.connect(*where)
        await store.open_run({"fingerprint": "f", "gamma": "1", "group_size": "8"})
        await store.add_problems(problems)
        await store.issue([problem.id for problem in problems], limit=32)
        snapshots = Snapshots(store, tmp_path / "scratch")
        actor = asyncio.create_task(Actor(settings, store, served.engine, served.tokenizer, snapshots).run())

        async def until(happened: Callable[[dict[str, Any]], Any], what: str) -> None:
            deadline = time.monotonic() + 60
            while not happened((await store.actors()).get("actor", {})):
                assert not actor.done(), actor.result()
                assert time.monotonic() < deadline, what
                await asyncio.sleep(0.02)

        await until(lambda beat: beat.get("wants_full"), "it asks for a full snapshot")
        while (await store.counters())["committed"] < 32:
            await asyncio.sleep(0.02)
        assert {entry.version_max for entry in await store.entries("0-0")} == {old}
        await asyncio.to_thread(learner.publish)
        await until(lambda beat: beat.get("version") == old + 3 and "wants_full" not in beat, "it is mended")
        await store.set_phase("done")
        await actor
        await store.close()

    served.run(scene())
    assert learner.formats()[-1] == (old + 3, "full", -1)
    said = capsys.readouterr().err
    assert f"goes on with version {old}: version {old + 2} cannot be rebuilt: weights delta" in said
    assert f"version {old + 3} (full, 0.674 MB) loaded" in said
