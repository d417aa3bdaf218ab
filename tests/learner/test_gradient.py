"""The packed, chunked forward and the whole step's gradient against a plain, obvious implementation in float64."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import learner.policy
from gating.filtered import kl_control
from learner.batches import Shape, TrainCompletion, TrainGroup, pack, unpack
from learner.config import CorrectionConfig, ObjectiveConfig
from learner.objective import Denominator, StepStats, policy_loss
from learner.policy import DeviceBatch, Policy, logprobs_of
from learner.selection import mark, selects
from store.errors import VergeError
from tests.learner.scripted import VOCAB, random_groups, tiny_llama

CPU = torch.device("cpu")
SHAPES = {"shared prompt": Shape(1.0, 0.0), "one row per completion": Shape(1e-9, 1.0)}


def double_model(folder: Path, tied: bool) -> torch.nn.Module:
    tiny_llama(folder, tied)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    for module in model.modules():
        if isinstance(module, LlamaRMSNorm):  # its forward casts to float32, which rounds the gradient to 1e-7
            module.forward = partial(
                torch.nn.functional.rms_norm, normalized_shape=(32,), weight=module.weight, eps=1e-6
            )
    return model


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    return double_model(tmp_path_factory.mktemp("tied"), tied=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    return double_model(tmp_path_factory.mktemp("untied"), tied=False)


def plain_logprobs(
    model: torch.nn.Module, group: TrainGroup, answer: TrainCompletion, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """log π and entropy of one completion: its prompt and itself through the model, and nothing clever."""
    ids = torch.from_numpy(np.concatenate([group.prompt_ids, answer.token_ids]))[None]
    logits = model(ids).logits[0, len(group.prompt_ids) - 1 : -1] / temperature
    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, torch.from_numpy(answer.token_ids)[:, None]).squeeze(-1), entropy


def plain_loss(
    model: torch.nn.Module,
    groups: list[TrainGroup],
    temperature: float,
    objective: ObjectiveConfig,
    correction: CorrectionConfig,
) -> torch.Tensor:
    """DESIGN §6, one completion and one token at a time."""
    completions = sum(g.eligible for g in groups)
    tokens = sum(g.eligible_tokens for g in groups)
    loss = torch.zeros((), dtype=torch.float64)
    marked = plain_marks(model, groups, temperature, objective, correction)
    for group in groups:
        for answer in group.completions:
            logprobs, entropy = plain_logprobs(model, group, answer, temperature)
            present = [not math.isnan(mu) for mu in answer.behaviour]
            log_ratios = [
                float(lp.detach()) - float(mu) if ok else 0.0
                for lp, mu, ok in zip(logprobs, answer.behaviour, present, strict=True)
            ]
            whole = math.exp(min(max(sum(log_ratios), -20), 20))
            mean = math.exp(min(max(sum(log_ratios) / max(sum(present), 1), -20), 20))
            positive = answer.advantage >= 0
            cap = correction.cap_positive if positive else correction.cap_negative
            for t, log_ratio in enumerate(log_ratios):
                divisor = {
                    "token_mean": tokens,
                    "sequence_mean": sum(present) * completions,
                    "constant": objective.constant_tokens * completions,
                }[objective.normalisation]
                ratio = math.exp(min(max(log_ratio, -20), 20))
                moved = 0.0 if answer.proximal is None else float(logprobs[t].detach()) - answer.proximal[t]
                moved = math.exp(min(max(moved, -20), 20))
                weight = {
                    "none": 1.0,
                    "tis": min(ratio, cap),
                    "mis": ratio if ratio <= cap else 0.0,
                    "topr": 1.0 if positive else min(whole, 1.0),
                    "seq_tis": min(whole, cap),
                    "seq_mis": whole if whole <= cap else 0.0,
                    "gspo": mean,
                    "decoupled": min(ratio / moved, cap) * moved,
                    "m2po": ratio,
                }[correction.kind]
                judged = {"gspo": mean, "decoupled": moved}.get(correction.kind, ratio)
                outside = judged > 1 + correction.clip_high if positive else judged < 1 - correction.clip_low
                if correction.dual_clip is not None and not positive:
                    outside = outside or judged > correction.dual_clip
                if present[t]:
                    loss = loss - group.weight * objective.entropy_bonus * entropy[t] / divisor
                token = (id(answer), t)
                if present[t] and token in marked["held"]:  # KL(old‖π) by k3, differentiated as it stands
                    old = answer.proximal[t] if correction.kind == "decoupled" else float(answer.behaviour[t])
                    since = mean if correction.kind == "gspo" else (logprobs[t] - old).exp()
                    pull = since - 1 - logprobs[t] if correction.kind != "gspo" else (mean - 1) * logprobs[t]
                    loss = loss + group.weight * objective.cov_kl * pull / divisor
                if not present[t] or (correction.trust and outside) or token in marked["dropped"]:
                    continue
                loss = loss - group.weight * answer.advantage * weight * logprobs[t] / divisor
    return loss


def plain_marks(
    model: torch.nn.Module,
    groups: list[TrainGroup],
    temperature: float,
    objective: ObjectiveConfig,
    correction: CorrectionConfig,
) -> dict[str, set[tuple[int, int]]]:
    """The tokens, as (completion, place), that a step drops and holds: one at a time, the most extreme first."""
    rows = []  # token, log π, log-ratio, advantage
    for group in groups:
        for answer in group.completions:
            with torch.no_grad():
                logprobs, _ = plain_logprobs(model, group, answer, temperature)
            for t, (now, mu) in enumerate(zip(logprobs.tolist(), answer.behaviour.tolist(), strict=True)):
                if not math.isnan(mu):
                    rows.append(((id(answer), t), now, now - mu, answer.advantage))
    found: dict[str, set[tuple[int, int]]] = {"dropped": set(), "held": set()}
    if correction.kind == "m2po":
        while rows and sum(row[2] ** 2 for row in rows) / len(rows) > correction.m2_threshold:
            worst = max(rows, key=lambda row: row[2] ** 2)
            found["dropped"].add(worst[0])
            rows.remove(worst)
    middle, typical = (sum(row[i] for row in rows) / len(rows) for i in (1, 3))
    covariance = {token: (now - middle) * (advantage - typical) for token, now, _, advantage in rows}
    if objective.covariance == "kl":
        ranked = sorted(covariance, key=lambda token: covariance[token])
        found["held"].update(ranked[-int(objective.cov_share * len(rows)) :])
    if objective.covariance == "clip":  # every candidate: their share is 1, so that no lot decides
        found["dropped"].update(
            token for token, value in covariance.items() if objective.cov_low <= value <= objective.cov_high
        )
    return found


def near_behaviour(model: torch.nn.Module, groups: list[TrainGroup], temperature: float) -> list[TrainGroup]:
    """The same groups with behaviour and proximal log-probs a little off the model's, and some of the behaviour's
    missing, so that every branch runs.
    """
    rng = np.random.default_rng(5)
    near = []
    for group in groups:
        answers = []
        for answer in group.completions:
            with torch.no_grad():
                logprobs, _ = plain_logprobs(model, group, answer, temperature)
            behaviour = (logprobs.numpy() + rng.normal(0, 0.25, len(logprobs))).astype(np.float32)
            if rng.random() < 0.2:
                behaviour[-1] = np.nan
            proximal = logprobs.numpy() + rng.normal(0, 0.25, len(logprobs))
            answers.append(TrainCompletion(answer.token_ids, behaviour, answer.advantage, proximal))
        tokens = int(sum(np.isfinite(a.behaviour).sum() for a in answers))
        near.append(TrainGroup(group.id, group.prompt_ids, tuple(answers), group.weight, group.eligible, tokens))
    return near


def gradient(model: torch.nn.Module) -> torch.Tensor:
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return found


@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize("chunk", [1 << 24, 24], ids=["one chunk", "many chunks"])
def test_packed_log_probs_and_entropies_are_those_of_the_plain_forward(
    model: torch.nn.Module, layout: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner.policy, "CHUNK_ELEMENTS", chunk)
    groups = random_groups(5, seed=1)
    policy = Policy(model, temperature=0.7)
    expected = {}
    for g in groups:
        for answer in g.completions:
            expected[tuple(g.prompt_ids), tuple(answer.token_ids)] = plain_logprobs(model, g, answer, 0.7)
    answers = {id(a.behaviour): key for key, (g, a) in zip(
        expected, [(g, a) for g in groups for a in g.completions], strict=True)}  # fmt: skip
    assert len(answers) == len(expected)
    seen = 0
    for batch in pack(groups, SHAPES[layout], 60):
        logprobs, entropy = policy(DeviceBatch(batch, CPU))
        for s in range(len(batch.advantage)):
            mine = batch.sample == s
            first = int(batch.source[mine][0])
            row, position = divmod(first, batch.input_ids.shape[1])
            prompt = batch.input_ids[row][
                (batch.document[row] == batch.document[row, position]) & (batch.branch[row] == 0)
            ]
            want = expected[tuple(prompt), tuple(batch.target[mine])]
            assert torch.allclose(logprobs[mine], want[0], atol=1e-12)
            assert torch.allclose(entropy[mine], want[1], atol=1e-12)
            seen += 1
    assert seen == len(expected)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_has_the_log_probs_and_the_gradient_of_sdpa(
    tied: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not compiled, and let past PyTorch's refusal: on a CPU only flex's plain form has a backward."""
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *_: None)
    monkeypatch.setattr(
        "transformers.integrations.flex_attention.compile_friendly_flex_attention",
        lambda *qkv, training, **options: torch.nn.attention.flex_attention.flex_attention(*qkv, **options),
    )
    groups, found = random_groups(3, seed=7), []
    for attention in ("sdpa", "flex_attention"):
        monkeypatch.setattr(tied.config, "_attn_implementation", attention)
        tied.zero_grad()
        policy, logprobs = Policy(tied, temperature=0.7), []
        for batch in pack(groups, SHAPES["shared prompt"], 1000):
            logprobs.append(policy(DeviceBatch(batch, CPU))[0])
            logprobs[-1].sum().backward()
        found.append(torch.cat([*logprobs, gradient(tied)]).detach())
    assert torch.allclose(*found, atol=1e-12)


METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gradient": ({}, {}),
    "no trust": ({}, {"trust": False}),
    "dual clip": ({}, {"dual_clip": 1.2}),
    "clip_cov": ({"covariance": "clip", "cov_low": 0.05, "cov_high": 0.5, "cov_share": 1.0}, {}),
    "entropy": ({"entropy_bonus": 0.3}, {}),
    "kl_cov": ({"covariance": "kl", "cov_share": 0.3, "cov_kl": 0.7}, {}),
}
"""Settings of [objective] and of [correction]."""


@pytest.mark.parametrize("kind", get_args(CorrectionConfig.model_fields["kind"].annotation))
@pytest.mark.parametrize("normalisation", ["token_mean", "sequence_mean", "constant"])
@pytest.mark.parametrize("method", METHODS)
def test_the_gradient_of_a_step_is_that_of_the_plain_implementation(
    tied: torch.nn.Module, kind: Any, normalisation: Any, method: str
) -> None:
    model = tied
    model.zero_grad()
    objective = ObjectiveConfig(normalisation=normalisation, **METHODS[method][0])
    correction = CorrectionConfig(kind=kind, **METHODS[method][1])
    groups = near_behaviour(model, random_groups(3, seed=2, size=3), 1.3)
    plain = plain_loss(model, groups, 1.3, objective, correction)
    plain.backward()
    expected = gradient(model)
    policy, stats = Policy(model, temperature=1.3), StepStats(CPU)
    if selects(objective, correction):
        batches = pack(groups, SHAPES["shared prompt"], 30)
        now = unpack(groups, batches, logprobs_of(policy, batches, CPU))
        groups = mark(groups, now, objective, correction, 0, lambda values: values)
    for batch in pack(groups, SHAPES["shared prompt"], 30):
        data = DeviceBatch(batch, CPU)
        logprobs, entropy = policy(data)
        policy_loss(logprobs, entropy, data.tokens, Denominator.of(groups), objective, correction, stats).backward()
    if method != "kl_cov":  # whose value is that of its gradient's surrogate
        assert stats.metrics()["loss"] == pytest.approx(float(plain.detach()), abs=1e-12)
    if kind == "m2po" and method == "gradient":
        assert stats.metrics()["second_moment"] <= correction.m2_threshold
    assert float((gradient(model) - expected).abs().max()) < 1e-10


def test_kl_control_climbs_reward_less_kl_to_the_base(tied: torch.nn.Module, model: torch.nn.Module) -> None:
    """Every answer of one token, each as often as the policy gives it: no noise is left, and no baseline is needed."""
    beta, temperature, right = 0.3, 1.3, (torch.arange(VOCAB) % 3 == 0).double()
    prompt = np.array([3, 1, 4])
    ids = torch.from_numpy(prompt)[None]
    tied.zero_grad()
    now = (tied(ids).logits[0, -1] / temperature).log_softmax(-1)
    base = (model(ids).logits[0, -1] / temperature).log_softmax(-1).detach()
    (now.exp() * (right - beta * (now - base))).sum().backward()  # E[v] − β·KL(π‖a)
    expected = gradient(tied)

    everything = tuple(TrainCompletion(np.array([k]), np.zeros(1, np.float32), 1.0) for k in range(VOCAB))
    whole = [TrainGroup("1-0", prompt, everything, 1.0, VOCAB, VOCAB)]
    found = []
    for policy in (Policy(tied, temperature), Policy(model, temperature)):
        batches = pack(whole, SHAPES["shared prompt"], 100)
        found.append(np.concatenate(unpack(whole, batches, logprobs_of(policy, batches, CPU))[0]))
    logp, logp_base = found
    advantages = kl_control(right.numpy()[None], logp[None], logp_base[None], beta)[0]
    weighed = tuple(
        TrainCompletion(c.token_ids, c.behaviour, float(a * p))
        for c, a, p in zip(everything, advantages * (VOCAB - 1) / VOCAB, np.exp(logp), strict=True)
    )
    groups = [replace(whole[0], completions=weighed)]
    plain = CorrectionConfig(kind="none", trust=False)
    for batch in pack(groups, SHAPES["shared prompt"], 100):
        data, once = DeviceBatch(batch, CPU), Denominator(1, 1)
        logprobs, entropy = Policy(tied, temperature)(data)
        policy_loss(logprobs, entropy, data.tokens, once, ObjectiveConfig(), plain, StepStats(CPU)).backward()
    assert float((gradient(tied) + expected).abs().max()) < 1e-10


def test_in_float32_the_packed_log_probs_agree_to_1e_5(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_llama(tmp_path), dtype=torch.float32).eval()
    groups = random_groups(6, seed=3)
    (batch,) = pack(groups, SHAPES["shared prompt"], 10_000)
    logprobs, _ = Policy(model, 1.0)(DeviceBatch(batch, CPU))
    flat = {}
    for g in groups:
        for answer in g.completions:
            flat[tuple(answer.token_ids), len(g.prompt_ids), g.weight] = plain_logprobs(model, g, answer, 1.0)[0]
    worst = 0.0
    for s in range(len(batch.advantage)):
        mine = batch.sample == s
        candidates = [v for (ids, _, w), v in flat.items() if ids == tuple(batch.target[mine]) and w == batch.weight[s]]
        worst = max(worst, min(float((logprobs[mine] - v).detach().abs().max()) for v in candidates))
    assert worst < 1e-5


def test_a_model_whose_head_or_attention_would_be_computed_wrongly_is_refused() -> None:
    config = Gemma2Config(
        vocab_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=16,
    )  # fmt: skip
    with pytest.raises(VergeError, match=r"final_logit_softcapping=30\.0"):
        Policy(Gemma2ForCausalLM(config), 1.0)
    config.final_logit_softcapping = None
    with pytest.raises(VergeError, match="sliding_attention"):
        Policy(Gemma2ForCausalLM(config), 1.0)
