"""Weights out: what is announced loads elsewhere with equal logits, is complete, and does not pile up."""

import errno
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from learner.config import CorrectionConfig, LearnerConfig, ObjectiveConfig
from learner.publish import Publisher, write_snapshot
from learner.ranks import Ranks
from learner.store_thread import StoreThread
from learner.trainer import Trainer
from store.errors import VergeError
from store.server import EmbeddedServer
from tests.learner.scripted import random_groups, tiny_llama


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def line(server: EmbeddedServer, tmp_path: Path) -> Iterator[StoreThread]:
    with StoreThread(server.url, tmp_path.name, server.password) as connected:
        yield connected


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("stage", [0, 3])
def test_a_snapshot_loads_with_the_logits_of_the_trained_model(tmp_path: Path, tied: bool, stage: int) -> None:
    base = tiny_llama(tmp_path / "base", tied=tied)
    (base / "tokenizer.json").write_text("{}")
    learner = LearnerConfig(lr=1e-2, zero_stage=stage, threads=1)
    trainer = Trainer(base, learner, ObjectiveConfig(), CorrectionConfig(), 1.0, Ranks())
    trainer.step(random_groups(4), 0)
    write_snapshot(tmp_path / "v1", {n: w.clone() for n, w in trainer.weights()}, base)
    ids = torch.arange(10)[None]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "v1")
    original = AutoModelForCausalLM.from_pretrained(base)
    assert loaded.dtype == torch.float32
    assert not torch.allclose(loaded(ids).logits, original(ids).logits, atol=1e-3)
    if stage == 0:
        assert torch.equal(loaded(ids).logits, trainer.engine.module.model(ids).logits)
    assert (tmp_path / "v1" / "tokenizer.json").read_text() == "{}"


def test_what_is_announced_is_hashed_from_disk_and_old_snapshots_go_unless_an_actor_uses_them(
    line: StoreThread, tmp_path: Path
) -> None:
    base = tiny_llama(tmp_path / "base")
    line.call(line.store.beat("slow", {"version": 1}))
    line.call(line.store.beat("dead", {"version": 2, "time_s": time.time() - 1000}))
    publisher = Publisher(line, tmp_path / "weights", base, keep=2, dtype=torch.bfloat16)
    publisher.announce_base()
    weights = AutoModelForCausalLM.from_pretrained(base).named_parameters()
    copies = [(name, value.detach()) for name, value in weights]
    for version in range(1, 6):
        publisher.begin(version, 10 * version, iter(copies))
    publisher.finish()
    publisher.close()
    manifests = line.call(line.store.manifests())
    assert [(m.version, m.step) for m in manifests] == [(0, 0), (1, 10), (2, 20), (3, 30), (4, 40), (5, 50)]
    assert publisher.announced_step == 50
    newest = Path(manifests[-1].path)
    data = (newest / "model.safetensors").read_bytes()
    assert hashlib.sha256(data).hexdigest() == manifests[-1].sha256
    assert len(data) == manifests[-1].bytes
    assert json.loads((newest / "config.json").read_text())["dtype"] == "bfloat16"
    assert AutoModelForCausalLM.from_pretrained(newest).dtype == torch.bfloat16
    assert sorted(p.name for p in (tmp_path / "weights").iterdir()) == ["v0000001", "v0000004", "v0000005"]


def test_a_full_disk_is_one_line_and_leaves_no_half_written_snapshot(
    line: StoreThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    base = tiny_llama(tmp_path / "base")
    monkeypatch.setattr("learner.publish.save_file", full)
    publisher = Publisher(line, tmp_path / "weights", base, keep=2, dtype=torch.float32)
    publisher.begin(1, 1, [("w", torch.zeros(2))])
    with pytest.raises(VergeError, match=r"version 1 cannot be written .* No space left on device; free space"):
        publisher.finish()
    assert list((tmp_path / "weights").iterdir()) == []
    assert line.call(line.store.manifest()) is None
