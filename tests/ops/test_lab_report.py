"""Plans are accepted by the config, and a report says of a claim what the lines say, either way."""

from pathlib import Path
from typing import Any

import pytest

from ops.labs import claims, lines, offpolicy_plan, plans, report
from ops.labs.cells import Result, Study
from ops.labs.names import full_name
from ops.labs.plans import run_of
from ops.labs.settings import BASE, RunSettings
from store.errors import VergeError

BASE_PASS = [0.10, 0.28, 0.50, 0.70, 0.85]
PAIRS = [(0, 0), (1, 1), (2, 2)]


def line(settings: RunSettings, passes: list[float], choose: list[float] | None = None, **others: Any) -> str:
    """A made line: `passes` on the reporting half and the problems trained on, `choose` on the other half."""
    part = {"hard": [p / 2 for p in passes], "distinct": 5.0, "new": 2, "lost": 1, "problems": 250, "hard_problems": 90}
    final = {"train": {"pass": passes, **part}, "choose": {"pass": choose or passes, **part},
             "report": {"pass": passes, **part}, "entropy": 0.5}  # fmt: skip
    figures = {"final": final, "curve": [], "alpha": 2.0, "delta": 0.8, "ended": ""}
    figures["steps"] = {name: [0.5, 0.1] for name in ("ess", "kl", "clip_share_negative")}
    return lines.line_of(settings, figures | others)


def bases() -> list[str]:
    return [line(RunSettings(method=BASE, base=base), BASE_PASS) for base in range(3)]


def runs(method: str, by: list[float], pairs: list[tuple[int, int]] = PAIRS, **given: Any) -> list[str]:
    """Runs whose pass@k differs from the base's by `by`, and a little by seed."""
    return [
        line(run_of(method, base=base, seed=seed, **given),
             [max(p + d + 0.001 * seed, 0.0) for p, d in zip(BASE_PASS, by, strict=True)])
        for base, seed in pairs
    ]  # fmt: skip


def study_of(text: list[str], tmp_path: Path, task: Any = "all") -> Study:
    path = tmp_path / "made.jsonl"
    path.unlink(missing_ok=True)
    for each in text:
        lines.append(path, each)
    return Study((Result(read["settings"], read) for read in lines.read(path)), task)


def verdict(letter: str, study: Study, long: Study | None = None, lag: int = 4) -> claims.Verdict:
    found = [v for v in claims.verdicts(study, Study([]), long or study) if v.claim.startswith(f"({letter})")]
    return next((v for v in found if f"lag {lag}" in v.claim), found[0])


@pytest.mark.parametrize("plan", [plans.collapse(), plans.quick(), offpolicy_plan.whole(), offpolicy_plan.quick()])
def test_the_config_accepts_every_run_of_a_plan_and_each_kind_has_a_name_of_its_own(plan: list[RunSettings]) -> None:
    kinds: dict[tuple[str, Any], str] = {}
    for settings in plan:
        if settings.method != BASE:
            made = settings.learner_settings(Path("model"), Path("run"), "redis://x", None)
            assert made.learner.lr == settings.lr
            assert made.objective.advantage == settings.method
        kind = settings.model_dump_json(exclude={"lr", "seed", "base"})
        name = (full_name(settings), (settings.lag, settings.task, settings.steps))
        assert kinds.setdefault(name, kind) == kind, name


def test_a_plan_begins_with_what_every_report_needs() -> None:
    plan = plans.collapse()
    assert plan[0].method == BASE
    assert tuple(settings.method for settings in plan[1:7]) == plans.CORE
    assert {settings.method for settings in plan[:45] if settings.lag == 0} == {BASE, *plans.METHODS}
    seen: set[tuple[int, str]] = set()
    for settings in plan:
        seen |= {(settings.base, settings.task)} if settings.method == BASE else set()
        assert (settings.base, "all") in seen
    at_every_rate = {(s.method, s.lr, s.base, s.seed) for s in plan if s.lag == 0 and not s.gating and s.task == "all"}
    for method in plans.METHODS:
        for base in range(3):
            for rate, seeds in ((plans.RATE, 3), (plans.FASTER, 1), (plans.SLOWER, 1)):
                found = {seed for m, lr, b, seed in at_every_rate if (m, lr, b) == (method, rate, base)}
                assert len(found) >= seeds, (method, rate, base)


@pytest.mark.parametrize(("gain", "status"), [(-0.03, "holds"), (0.03, "does not hold"), (0.0, "undecided")])
def test_claim_a_follows_the_sign_of_what_standard_rl_did_to_pass_at_256(
    tmp_path: Path, gain: float, status: str
) -> None:
    by = [0.08, 0.05, 0.02, 0.0, gain - 0.001]
    study = study_of(bases() + runs("drgrpo", by) + runs("grpo", by), tmp_path)
    assert verdict("a", study).status == status
    assert f"pass@256 {gain:+.3f}" in verdict("a", study).because[0]
    assert "n = 3" in verdict("a", study).because[0]


def test_one_run_only_seems_to_say_something(tmp_path: Path) -> None:
    study = study_of(bases()[:1] + runs("drgrpo", [0.08, 0.05, 0.02, 0.0, -0.03], PAIRS[:1]), tmp_path)
    assert verdict("a", study).status == "seems to hold"
    assert verdict("b", study).status == "not run"


def test_longer_runs_are_judged_beside_the_others_not_with_them(tmp_path: Path) -> None:
    wide, narrow = [0.08, 0.05, 0.02, 0.0, 0.02], [0.12, 0.05, 0.0, -0.02, -0.05]
    text = bases() + runs("drgrpo", wide) + runs("drgrpo", narrow, PAIRS[:2], steps=plans.LONG_STEPS)
    results = study_of(text, tmp_path)
    longer = Study((Result(read["settings"], read) for read in lines.read(tmp_path / "made.jsonl")), "all", 300)
    found = {v.claim[:3] + v.claim[-9:]: v.status for v in claims.verdicts(results, longer, Study([]))}
    assert found["(a) the base"] == "does not hold"
    assert found["(a)300 steps"] == "seems to hold"


def test_claim_e_needs_every_k_the_best_mean_and_a_dial(tmp_path: Path) -> None:
    ours, behind = [0.06, 0.10, 0.12, 0.12, 0.09], [0.02, 0.04, 0.06, 0.08, 0.05]
    dial = [
        text
        for k, shift in zip(plans.DIAL, (-0.03, -0.015, 0.01, 0.02), strict=True)
        for text in runs("fade_bbg", [0.06 - shift, 0.10, 0.12, 0.12, 0.09 + shift], gating={"k": k})
    ]
    good = bases() + runs("fade_bbg", ours) + runs("bbg", behind) + runs("zero_only", behind) + dial
    assert verdict("e", study_of(good, tmp_path)).status == "holds"
    better_first = good + runs("bbg", [0.09, 0.04, 0.06, 0.08, 0.05], [(0, 3), (1, 4), (2, 5)])
    better_first += runs("fade_bbg", ours, [(0, 3), (1, 4), (2, 5)])
    assert verdict("e", study_of(better_first, tmp_path)).status == "undecided"
    rival = good + runs("maxrl", [0.12, 0.12, 0.13, 0.13, 0.10])
    found = verdict("e", study_of(rival, tmp_path))
    assert found.status == "does not hold"
    assert any("best other method, maxrl: -0.0" in reason for reason in found.because)


def test_claim_f_counts_the_collapsed(tmp_path: Path) -> None:
    gone, kept = [-0.1, -0.28, -0.5, -0.7, -0.85], [0.05] * 5
    broken = [
        text
        for method in plans.FAILURE_BIASED
        for text in runs(method, gone, lag=4, correction=plans.UNTRUSTED)
    ] + runs("bbg", gone, lag=4, correction=plans.PPO_CLIP)  # fmt: skip
    held = bases() + broken + runs("fade_bbg", kept, lag=4)
    assert verdict("f", study_of(held, tmp_path)).status == "holds"
    assert verdict("f", study_of(held, tmp_path), lag=16).status == "not run"
    lost = verdict("f", study_of(bases() + broken + runs("fade_bbg", gone, lag=4), tmp_path))
    assert lost.status == "does not hold"
    assert any("fade_bbg; default: 3 of 3 collapsed" in reason and "not what" in reason for reason in lost.because)


@pytest.mark.parametrize(("at_half", "status"), [(0.30, "holds"), (0.12, "does not hold")])
def test_claim_d_compares_the_rollouts_to_the_baselines_peak(tmp_path: Path, at_half: float, status: str) -> None:
    given: dict[str, Any] = {"task": "easy", "steps": plans.LONG_STEPS}
    rollouts = plans.LONG_STEPS * 64 * 8

    def curve(first: float) -> list[dict[str, Any]]:
        passes = [first, 0.5, 0.6, 0.7, 0.8]
        return [{"rollouts": rollouts // 2, "choose": passes, "report": passes, "entropy": 0.5}]

    text = [line(RunSettings(method=BASE, base=base, task="easy"), BASE_PASS) for base in range(3)]
    for base, seed in PAIRS:
        slow = [0.25 + 0.001 * seed, 0.4, 0.5, 0.6, 0.7]
        text.append(line(run_of("drgrpo", base=base, seed=seed, **given), slow, curve=curve(0.15)))
        fast = [0.31 if status == "holds" else 0.2, 0.5, 0.6, 0.7, 0.8 + 0.001 * seed]
        text.append(line(run_of("fade", base=base, seed=seed, gating=plans.HIGH_TARGET, **given), fast,
                         curve=curve(at_half)))  # fmt: skip
    long = study_of(text, tmp_path, "easy")
    found = verdict("d", long, long)
    assert found.status == status
    assert ("+0.5" in found.because[1]) == (status == "holds")


def test_the_rate_is_chosen_on_one_half_and_reported_on_the_other(tmp_path: Path) -> None:
    low, high = [0.1, 0.2, 0.3, 0.4, 0.5], [0.2, 0.3, 0.4, 0.5, 0.6]
    text = bases()
    text += [line(run_of("maxrl", lr=1e-4, base=b, seed=s), low, choose=high) for b, s in PAIRS]
    text += [line(run_of("maxrl", lr=2e-4, base=b, seed=s), high, choose=low) for b, s in PAIRS[:2]]
    cell = study_of(text, tmp_path).cell("maxrl")
    assert cell is not None
    assert (cell.rate, cell.n, cell.rates) == (1e-4, 3, (1e-4, 2e-4))
    assert cell.mean(claims.at(256)) == 0.5


def test_a_report_has_its_figures_and_leaves_out_what_was_not_run(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    stale = runs("fade_bbg", [0.05] * 5, lag=4) + runs("fade_bbg", [0.02] * 5, lag=4, correction={"clip_low": 0.2})
    for each in bases() + runs("fade_bbg", [0.05] * 5) + runs("drgrpo", [0.05, 0, 0, 0, -0.02]) + stale:
        lines.append(path, each)
    text = report.write([path], tmp_path / "out")
    assert (tmp_path / "out" / "RESULTS.md").read_text() == text
    assert "|fade_bbg|0.0001 (1)|3|0.151±0.001|" in text
    assert "clip_low at lag 4, fade_bbg: 0.1 is best on the choosing half; on the other, mean over k +0.030" in text
    assert "maxrl" not in text
    for name in ("frontier.svg", "gains.svg", "staleness.svg"):
        assert f"({name})" in text
        assert "</svg>" in (tmp_path / "out" / name).read_text()
    first = (tmp_path / "out" / "frontier.svg").read_bytes()
    report.write([path], tmp_path / "out")
    assert (tmp_path / "out" / "frontier.svg").read_bytes() == first
    with pytest.raises(VergeError, match="no results there"):
        report.write([tmp_path / "absent.jsonl"], tmp_path / "out")


def test_the_results_in_the_repository_are_those_of_the_runs_beside_them(tmp_path: Path) -> None:
    here = Path(report.__file__).parent
    assert report.write(sorted(here.glob("*.jsonl")), tmp_path) == (here / report.NAME).read_text(encoding="utf-8")
