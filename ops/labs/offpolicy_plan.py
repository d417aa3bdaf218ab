"""The runs of `verge lab offpolicy`: age × correction × trust region × method, and the choice of three settings."""

from collections.abc import Iterator
from typing import Any

from ops.labs.plans import HIGH_TARGET, STEPS, UNTRUSTED, run_of
from ops.labs.settings import BASE, RunSettings

METHODS = ("fade_bbg", "bbg", "drgrpo", "asym_grpo")
"""From balanced to failure-biased: drgrpo and fade_bbg are balanced, asym_grpo leans 2 to 1, bbg as its gate has it."""
LAGS = (4, 16, 1, 8, 2)
TRUST: tuple[dict[str, Any], ...] = (
    {},
    {"correction": UNTRUSTED},
    {"correction": {"clip_low": 0.05}},
    {"correction": {"clip_low": 0.2}},
    {"correction": {"kind": "gspo", "clip_low": 0.05}},
    *(
        {"correction": UNTRUSTED, "objective": {"covariance": "kl", "cov_share": 1.0, "cov_kl": kl}}
        for kl in (0.1, 1.0)
    ),
)
"""clip_low .1 (the default), none, .05, .2; a completion masked by the geometric mean of its ratios; a KL penalty, on
every token, to the policy that wrote it."""
CORRECTIONS: tuple[dict[str, Any], ...] = (
    {"correction": {"kind": "none", **UNTRUSTED}},
    {"correction": {"kind": "mis", **UNTRUSTED}},
    {"correction": {"kind": "topr", **UNTRUSTED}},
    {"correction": {"kind": "seq_tis", **UNTRUSTED}},
    {"correction": {"kind": "m2po", **UNTRUSTED}},
    {"correction": {"kind": "decoupled"}, "mini_batches": 2},
)
"""Beside tis without a trust region; `decoupled` needs a second mini-batch, or it is that."""
CLIP_HIGH = (0.1, 0.5)
"""Beside the default, .28."""
FLOORS: tuple[dict[str, Any], ...] = (HIGH_TARGET, {**HIGH_TARGET, "delta_floor_per_lag": 0.0})
"""δ's floor that rises with the lag, and one that does not, with a target that makes δ move."""


def whole() -> list[RunSettings]:
    """`verge lab offpolicy`."""
    return list(_whole())


def _whole() -> Iterator[RunSettings]:
    yield run_of(BASE)
    for lag in LAGS[:2]:
        for method in METHODS:
            yield from (run_of(method, lag=lag, **trust) for trust in TRUST)
        yield from (run_of("fade_bbg", lag=lag, correction={"clip_high": high}) for high in CLIP_HIGH)
        yield from (run_of("fade", lag=lag, gating=floor) for floor in FLOORS)
        for method in METHODS[:2]:
            yield from (run_of(method, lag=lag, **correction) for correction in CORRECTIONS)
    yield from (run_of(method) for method in METHODS)
    for lag in LAGS[2:]:
        for method in METHODS:
            yield from (run_of(method, lag=lag, **trust) for trust in TRUST[:2])
    for lag in LAGS[:2]:
        for method in METHODS[2:]:
            yield from (run_of(method, lag=lag, **correction) for correction in CORRECTIONS)


def quick() -> list[RunSettings]:
    """`verge lab offpolicy --quick`."""
    short: dict[str, Any] = {"steps": 2 * STEPS // 5, "lag": 4}
    chosen = [TRUST[0], TRUST[1], TRUST[3], CORRECTIONS[0], CORRECTIONS[2]]
    return [run_of(BASE), *(run_of(method, **short, **given) for given in chosen for method in METHODS[:2])]
