"""vLLM as an actor uses it, and the learner's view of what it sampled."""

import asyncio
import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from actors.config import VerifierConfig
from actors.engine import CPU_BLOCK_TOKENS, Sample
from actors.verifiers import Verifiers
from learner.batches import TrainCompletion, TrainGroup, pack
from learner.config import CorrectionConfig, LearnerConfig, LoraConfig, ObjectiveConfig
from learner.policy import DeviceBatch, Policy, shape_of
from learner.publish import write_snapshot
from learner.ranks import Ranks
from learner.trainer import Trainer
from ops.eval_run import sampled
from store.wire import Problem
from tests.end_to_end.live import LiveEngine
from tests.learner.scripted import random_groups

PROMPT = "1234=56:"
# fp32 on both sides; vLLM and transformers sum in another order. Seen: at most 2e-6.
LOGPROB_TOLERANCE = 1e-4


def prompt_ids(live: LiveEngine, text: str = PROMPT) -> np.ndarray:
    return np.asarray(live.tokenizer.encode(text), dtype=np.int32)


def logprobs_by(policy: Policy, prompt: np.ndarray, samples: list[Sample]) -> np.ndarray:
    """Behaviour log-probs of the samples' tokens and those by the learner's packed forward pass, in its order."""
    completions = tuple(TrainCompletion(s.token_ids.astype(np.int64), s.logprobs, 1.0) for s in samples)
    group = TrainGroup(
        "g", prompt.astype(np.int64), completions, 1.0, len(samples), sum(len(s.token_ids) for s in samples)
    )
    found = []
    for batch in pack([group], shape_of(policy.model), 4096):
        with torch.no_grad():
            logprobs, _ = policy(DeviceBatch(batch, torch.device("cpu")))
        found.extend(zip(batch.behaviour.tolist(), logprobs.tolist(), strict=True))
    return np.array(found)


def learner_logprobs(model: Path, prompt: np.ndarray, samples: list[Sample]) -> np.ndarray:
    """The same by the model in a folder."""
    policy = Policy(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), 1.0).eval()
    return logprobs_by(policy, prompt, samples)


def perturbed(model: Path, folder: Path) -> Path:
    """The model with its weights moved a little, saved as the learner publishes it."""
    torch.manual_seed(1)
    moved = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.mul_(1 + 0.05 * torch.randn_like(parameter))
    moved.save_pretrained(folder)
    return folder


def test_a_group_holds_what_was_sampled_and_the_learner_agrees_with_its_logprobs(live: LiveEngine) -> None:
    prompt = prompt_ids(live)
    samples = live.run(live.engine.generate(prompt))
    assert len(samples) == 8
    assert len({tuple(sample.token_ids.tolist()) for sample in samples}) > 1
    for sample in samples:
        assert sample.complete
        assert sample.logprobs.shape == sample.token_ids.shape
        assert sample.spans[0].start == 0
        assert sample.spans[-1].end == len(sample.token_ids)
        assert (sample.finish_reason == "stop") == (sample.token_ids[-1] == live.tokenizer.eos_token_id)
    pairs = learner_logprobs(live.model, prompt, samples)
    assert len(pairs) == sum(len(sample.token_ids) for sample in samples)
    assert np.abs(pairs[:, 0] - pairs[:, 1]).max() < LOGPROB_TOLERANCE


def test_an_update_in_flight_leaves_two_versions_in_one_completion_and_new_weights_after_it(
    live: LiveEngine, tmp_path: Path
) -> None:
    moved = perturbed(live.model, tmp_path / "v1")
    old = live.engine.version
    new = old + 1

    async def update_while_generating() -> list[Sample]:
        prompts = [prompt_ids(live, f"{number}=56:") for number in range(1111, 1143)]
        groups = [asyncio.create_task(live.engine.generate(prompt)) for prompt in prompts]
        await asyncio.sleep(0.05)
        await live.engine.update(new, moved)
        return [sample for group in groups for sample in await group]

    samples = live.run(update_while_generating())
    mixed = [sample for sample in samples if len(sample.spans) == 2]
    assert mixed, "the update came before or after every completion"
    for sample in mixed:
        assert [span.version for span in sample.spans] == [old, new]
        assert sample.spans[0].end == sample.spans[1].start
    prompt = prompt_ids(live)
    after = live.run(live.engine.generate(prompt))
    assert {span.version for sample in after for span in sample.spans} == {new}
    by_new, by_old = (learner_logprobs(model, prompt, after) for model in (moved, live.model))
    assert np.abs(by_new[:, 0] - by_new[:, 1]).max() < LOGPROB_TOLERANCE
    assert np.abs(by_old[:, 0] - by_old[:, 1]).max() > 100 * LOGPROB_TOLERANCE
    compare = live.engine.differing
    assert live.run(compare(moved)) == []
    assert "model.norm.weight" in live.run(compare(live.model))
    live.run(live.engine.update(new + 1, live.model))


def test_any_of_the_stop_tokens_ends_a_completion_and_a_limit_of_its_own_cuts_it_off(live: LiveEngine) -> None:
    """On a view of the live engine for which `+` ends a completion too."""
    plus, end = live.tokenizer.encode("+")[-1], live.tokenizer.eos_token_id
    engine = copy.copy(live.engine)
    engine._settings = replace(live.engine._settings, stop_token_ids=(end, plus))
    prompts = [prompt_ids(live, f"{number}=56:") for number in range(1111, 1119)]
    samples = [sample for prompt in prompts for sample in live.run(engine.generate(prompt))]
    by_plus = [sample for sample in samples if sample.token_ids[-1] == plus]
    assert by_plus
    assert {sample.finish_reason for sample in by_plus} == {"stop"}
    assert all(token not in sample.token_ids[:-1] for sample in samples for token in (plus, end))
    cut = [sample for prompt in prompts for sample in live.run(live.engine.generate(prompt, max_tokens=1))]
    assert {len(sample.token_ids) for sample in cut} == {1}
    assert {sample.finish_reason for sample in cut if sample.token_ids[0] != end} == {"length"}


def test_a_published_model_with_merged_adapters_samples_as_the_one_with_adapters_beside_it(
    live: LiveEngine, tmp_path: Path
) -> None:
    learner = LearnerConfig(lr=1e-2, threads=1, warmup_steps=0, lora=LoraConfig(rank=4))
    trainer = Trainer(live.model, learner, ObjectiveConfig(), CorrectionConfig(), 1.0, Ranks())
    for step in range(2):
        assert trainer.step(random_groups(4, seed=step), step).applied
    write_snapshot(tmp_path / "v1", dict(trainer.weights()), live.model)
    prompt, version = prompt_ids(live), live.engine.version
    live.run(live.engine.update(version + 1, tmp_path / "v1"))
    samples = live.run(live.engine.generate(prompt))
    live.run(live.engine.update(version + 2, live.model))
    trained = logprobs_by(trainer.engine.module, prompt, samples)
    assert np.abs(trained[:, 0] - trained[:, 1]).max() < LOGPROB_TOLERANCE
    base = learner_logprobs(live.model, prompt, samples)
    assert np.abs(base[:, 0] - base[:, 1]).max() > 100 * LOGPROB_TOLERANCE


def test_many_groups_at_once_are_sent_one_in_a_round_of_the_event_loop(live: LiveEngine) -> None:
    async def most_in_a_round() -> int:
        groups = [asyncio.create_task(live.engine.generate(prompt_ids(live))) for _ in range(16)]
        begun, most = live.engine.requests, 0
        sent = begun
        while sent < begun + len(groups):
            await asyncio.sleep(0)
            most, sent = max(most, live.engine.requests - sent), live.engine.requests
        for group in groups:
            assert all(sample.complete for sample in await group)
        return most

    assert live.run(most_in_a_round()) == 1


def test_the_completions_of_a_group_share_their_prompt(live: LiveEngine) -> None:
    """All but the last block of it, which is not whole, and but for the first of them."""
    load = live.engine.load
    asked, shared = load.prompt_tokens, load.shared
    prompt = np.resize(prompt_ids(live), CPU_BLOCK_TOKENS + 3)
    live.run(live.engine.generate(prompt))
    assert load.prompt_tokens - asked == 8 * len(prompt)
    assert load.shared - shared == 7 * CPU_BLOCK_TOKENS


def test_what_has_been_imported_is_not_collected_again_while_there_is_an_engine(live: LiveEngine) -> None:
    """A full collection of it takes half a second, in which the event loop stands still."""
    assert live.frozen > 100_000


def test_a_cancelled_group_leaves_the_engine_serving(live: LiveEngine) -> None:
    async def cancel_one() -> list[Sample]:
        doomed = asyncio.create_task(live.engine.generate(prompt_ids(live)))
        await asyncio.sleep(0.01)
        doomed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doomed
        return await live.engine.generate(prompt_ids(live))

    assert all(sample.complete for sample in live.run(cancel_one()))
    assert live.engine.death is None


def test_an_evaluation_samples_a_problem_within_its_own_limit(live: LiveEngine) -> None:
    problem = Problem("p", "1234=10:", "countdown", {"digits": "1234", "target": 10}, max_completion_tokens=2)
    verifiers = Verifiers(VerifierConfig())
    tally = live.run(sampled(live.engine, problem, prompt_ids(live, "1234=10:"), verifiers, live.tokenizer))
    assert (tally.n, tally.errors) == (8, 0)
    assert tally.tokens <= 16
    assert tally.truncated > 0
