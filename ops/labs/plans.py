"""Which runs, in order of importance: any beginning of a plan is worth a report."""

from collections.abc import Iterator
from typing import Any

from ops.labs.ablations import GroupBaseline, SeeingGate
from ops.labs.settings import BASE, RunSettings

METHODS = (
    "fade_bbg", "drgrpo", "bbg", "zero_only", "fade", "maxrl", "grpo", "power", "asym_grpo", "w_reinforce",
)  # fmt: skip
STATIC = ("drgrpo", "grpo", "power", "maxrl", "asym_grpo", "w_reinforce", "zero_only", "bbg")
"""The baselines whose weights do not move with training."""
CORE = METHODS[:6]
RATE, FASTER, SLOWER = 1e-4, 2e-4, 5e-5
STEPS, LONG_STEPS = 100, 300
DIAL = (2, 4, 16, 32)
"""The gate's k beside its default, 8."""
GROUP_BASELINE, SEEING_GATE = (f"{kind.__module__}:{kind.__name__}" for kind in (GroupBaseline, SeeingGate))
ABLATIONS: tuple[dict[str, Any], ...] = (
    {"method": "fade_bbg", "params": {"k": 1}},
    {"method": GROUP_BASELINE},
    {"method": "fade_bbg", "params": {"alpha": 1.0}},
    {"method": SEEING_GATE},
)
"""No gate, group baseline, α off, a gate that sees the reward it multiplies."""
FAILURE_BIASED = ("bbg", "zero_only", "w_reinforce", SEEING_GATE)
UNTRUSTED = {"trust": False}
PPO_CLIP = {"clip_low": 0.2}
RELATIVE = {"delta_mode": "relative"}
HIGH_TARGET = {**RELATIVE, "target_entropy": 0.6}
"""δ moves as soon as the entropy of the base, .74 nats, has fallen by a fifth."""


def collapse() -> list[RunSettings]:
    """`verge lab collapse`."""
    return list(_collapse())


def _collapse() -> Iterator[RunSettings]:
    yield run_of(BASE)
    yield from (run_of(method) for method in CORE)
    yield from _stale(4)
    yield from (run_of("fade_bbg", gating={"k": k}) for k in DIAL)
    yield from _longer()
    yield from (run_of(method) for method in METHODS[len(CORE) :])
    yield from (run_of(method, lr=FASTER) for method in METHODS)
    for base in (1, 2):
        yield run_of(BASE, base=base)
        yield from (run_of(method, base=base, seed=base) for method in CORE)
    yield from (run_of(**ablation) for ablation in ABLATIONS)
    yield from _easy()
    yield from _stale(16)
    yield from (run_of(method, lr=SLOWER) for method in METHODS)
    for base in (1, 2):
        yield from (run_of(method, base=base, seed=base) for method in METHODS[len(CORE) :])
        yield from (run_of(method, base=base, seed=base, lr=SLOWER) for method in METHODS)
        yield from _moved(_stale(4), base)
        yield from (run_of(base=base, seed=base, **ablation) for ablation in ABLATIONS)
        yield from (run_of("fade_bbg", base=base, seed=base, gating={"k": k}) for k in DIAL)
    for seed, base in ((1, 0), (2, 1), (0, 2), (2, 0), (0, 1), (1, 2)):
        yield from (run_of(method, base=base, seed=seed) for method in METHODS)
        yield from (run_of("fade_bbg", base=base, seed=seed, gating={"k": k}) for k in DIAL)
    for base in (1, 2):
        yield from _moved(_longer(), base)
        yield from _moved(_easy(), base)
        yield from _moved(_stale(16), base)
        yield from (run_of(method, base=base, seed=base, lr=FASTER) for method in METHODS)


def _stale(lag: int) -> Iterator[RunSettings]:
    """Claim (f): failure-biased methods and their contrast, under truncated weights alone and with trust regions."""
    yield from (run_of("fade_bbg", lag=lag), run_of("fade_bbg", lag=lag, correction=UNTRUSTED))
    for method in FAILURE_BIASED:
        yield run_of(method, lag=lag, correction=UNTRUSTED)
    yield from (run_of(method, lag=lag, correction=PPO_CLIP) for method in ("bbg", "zero_only"))
    yield from (run_of(method, lag=lag, correction=UNTRUSTED) for method in ("drgrpo", "fade"))
    yield from (run_of(method, lag=lag) for method in ("bbg", "drgrpo", "fade"))


def _longer() -> Iterator[RunSettings]:
    """What more training makes of the fresh claims: narrowing needs time."""
    yield from (run_of(method, steps=LONG_STEPS) for method in ("drgrpo", "fade_bbg", "maxrl", "fade", "bbg"))


def _easy() -> Iterator[RunSettings]:
    """Claim (d): long runs on easy problems, so that p̂ and the entropy move as far as α and δ need."""
    yield run_of(BASE, task="easy")
    given: dict[str, Any] = {"task": "easy", "steps": LONG_STEPS}
    yield run_of("fade", gating=HIGH_TARGET, **given)
    yield from (run_of(method, **given) for method in ("drgrpo", "grpo"))
    yield from (run_of(method, gating=HIGH_TARGET, **given) for method in ("fade_bbg",))
    yield from (run_of(method, **given) for method in ("maxrl", "power", "asym_grpo"))
    yield run_of("fade", gating=RELATIVE, **given)


def _moved(runs: Iterator[RunSettings], base: int) -> Iterator[RunSettings]:
    """The same from another base, with another seed."""
    yield from (run.model_copy(update={"base": base, "seed": base}) for run in runs)


def quick() -> list[RunSettings]:
    """`verge lab collapse --quick`: a few short runs of the claims that a few short runs can speak of."""
    short: dict[str, Any] = {"steps": 40}
    return [
        run_of(BASE),
        *(run_of(method, **short) for method in ("fade_bbg", "drgrpo", "maxrl", "bbg")),
        *(run_of("fade_bbg", gating={"k": k}, **short) for k in (2, 32)),
        run_of("fade_bbg", lag=4, **short),
        *(run_of(method, lag=4, correction=UNTRUSTED, **short) for method in ("fade_bbg", "bbg", "zero_only")),
        run_of("bbg", lag=4, correction=PPO_CLIP, **short),
    ]


def run_of(method: str, *, lr: float = RATE, steps: int = STEPS, **others: Any) -> RunSettings:
    """A run of a plan's own rate and length; of the base only what tells which."""
    if method == BASE:
        return RunSettings(method=BASE, **others)
    return RunSettings(method=method, lr=lr, steps=steps, **others)
