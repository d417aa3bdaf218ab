"""`verge lab filtered`: why KL-controlled reward narrows a model that cannot represent the filtered one.

The toy experiment of Dymetman, arXiv 2605.02375, with another task, in which everything is exact. Answers are all
4⁶ = 4096 strings of six letters; right ones are the 64 palindromes. The policy is a position-dependent bigram model:
it can hold the base a, one of its own, but not p_* = a(·|right), for a bigram has forgotten the first letter when it
writes the last. Each objective is climbed from the base, as training would, by its exact gradient, the sum over all
strings; it may reach a local optimum only.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from gating import filtered
from ops.figures import check

Array = npt.NDArray[np.float64]
LETTERS, LENGTH = 4, 6
BETAS = (1.0, 0.5, 0.3, 0.2, 0.17, 0.14, 0.1, 0.05, 0.02)
FITS: dict[str, tuple[filtered.Divergence, float]] = {
    "forward KL": ("forward_kl", 0.0),
    "α-DPG .25": ("alpha", 0.25),
    "α-DPG .5": ("alpha", 0.5),
    "α-DPG .9": ("alpha", 0.9),
}
STEPS, RATE = 1000, 0.08
NO_CAP = 1e12
"""Expectations are exact here, so the cap that tames sampled pseudo-rewards is not needed."""


class Bigram:
    """Logits [position, previous letter, letter] over all strings; position 0 uses previous letter 0."""

    def __init__(self) -> None:
        strings = np.array(list(itertools.product(range(LETTERS), repeat=LENGTH)))
        previous = np.concatenate([np.zeros((len(strings), 1), int), strings[:, :-1]], axis=1)
        self.right = (strings == strings[:, ::-1]).all(axis=1).astype(np.float64)
        self._cell = (np.arange(LENGTH) * LETTERS + previous) * LETTERS + strings
        self.shape = (LENGTH, LETTERS, LETTERS)

    def log_probs(self, logits: Array) -> Array:
        """log π of every string."""
        log_rows = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        return cast(Array, log_rows.ravel()[self._cell].sum(axis=1))

    def gradient(self, logits: Array, weights: Array) -> Array:
        """Σ_y weights(y)·∇ log π(y)."""
        cells = np.bincount(self._cell.ravel(), np.repeat(weights, LENGTH), minlength=logits.size)
        reached = cells.reshape(self.shape)
        rows = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))
        return cast(Array, reached - rows * reached.sum(axis=-1, keepdims=True))


def climb(model: Bigram, start: Array, reward: Callable[[Array], Array]) -> Array:
    """Adam on E_π[reward(log π)·∇log π] with a linearly falling rate; returns log π of every string at the end."""
    logits, first, second = start.copy(), np.zeros_like(start), np.zeros_like(start)
    for step in range(1, STEPS + 1):
        log_pi = model.log_probs(logits)
        g = model.gradient(logits, np.exp(log_pi) * reward(log_pi))
        first, second = 0.9 * first + 0.1 * g, 0.99 * second + 0.01 * g * g
        update = (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-12)
        logits += RATE * (1 - (step - 1) / STEPS) * update
    return model.log_probs(logits)


def describe(log_pi: Array, right: Array, target: Array) -> dict[str, float]:
    """μ, entropy (nats a string), effective number exp(H) of right answers, and TV to p_*."""
    pi = np.exp(log_pi)
    mu = float(pi @ right)
    share = pi * right / mu
    held = share > 0
    return {
        "mu": mu,
        "entropy": float(-(pi @ log_pi)),
        "effective_right": float(np.exp(-(share[held] @ np.log(share[held])))),
        "tv": float(0.5 * np.abs(pi - target).sum()),
    }


def run(figure: Path | None = None, seed: int = 0) -> dict[str, Any]:
    """Climb every objective.

    Args:
        figure: a PNG, SVG or PDF file to draw into.
        seed: of the base model's logits.
    Returns:
        `checks`; `base`, `ideal` (p_*), `kl_control` (by falling β) and `fits`: lists of what `describe` says, with the
        μ that β would reach in an unlimited family; `table`: the same, one row per policy with the same columns;
        `conclusions`: sentences made from these numbers.
    """
    model = Bigram()
    start = np.random.default_rng(seed).normal(scale=0.7, size=model.shape)
    log_base = model.log_probs(start)
    right = model.right
    p = float(np.exp(log_base) @ right)
    target = np.exp(log_base) * right / p

    def kl_control(beta: float) -> dict[str, float]:
        log_pi = climb(model, start, lambda log_pi: right - beta * (log_pi - log_base))
        row = {"beta": beta, "ideal_mu": float(filtered.mu_of(p, beta)), **describe(log_pi, right, target)}
        reached = row["mu"] - beta * float(np.exp(log_pi) @ (log_pi - log_base))
        return row | {"objective": reached, "ideal_objective": float(filtered.free_energy(p, beta))}

    def fit(divergence: filtered.Divergence, alpha: float) -> Array:
        def reward(log_pi: Array) -> Array:
            log_t = np.where(right == 1.0, log_pi - log_base + np.log(p), np.inf)
            return filtered.pseudo_reward(log_t, divergence, alpha=alpha, cap=NO_CAP)

        return climb(model, start, reward)

    base = describe(log_base, right, target)
    ideal = describe(np.log(np.where(right == 1.0, target, 1.0)), right, target) | {"mu": 1.0, "tv": 0.0}
    ideal["effective_right"] = float(np.exp(-(target[right == 1] @ np.log(target[right == 1]))))
    ideal["entropy"] = float(np.log(ideal["effective_right"]))
    controlled = [kl_control(beta) for beta in BETAS]
    fits = [{"name": name, **describe(fit(*how), right, target)} for name, how in FITS.items()]
    result: dict[str, Any] = {
        "seed": seed,
        "p": p,
        "base": base,
        "ideal": ideal,
        "kl_control": controlled,
        "fits": fits,
    }
    result["table"] = _table(result)
    result["checks"] = _checks(result)
    result["conclusions"] = _conclusions(result)
    if figure is not None:
        _draw(result, figure)
        result["figure"] = str(figure)
    return result


def _table(result: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [("base", result["p"], result["base"])]
    rows += [(f"KL control, β {row['beta']:g}", row["ideal_mu"], row) for row in result["kl_control"]]
    rows += [(f"direct fit, {row['name']}", 1.0, row) for row in result["fits"]] + [("p*", 1.0, result["ideal"])]
    columns = ("mu", "entropy", "effective_right", "tv")
    return [{"policy": name, "ideal_mu": goal, **{key: row[key] for key in columns}} for name, goal, row in rows]


def _checks(result: dict[str, Any]) -> list[dict[str, Any]]:
    controlled = result["kl_control"]
    sharpest, widest = controlled[-1]["effective_right"], result["fits"][0]["effective_right"]
    left = sharpest / result["ideal"]["effective_right"]
    excess = max(row["objective"] - row["ideal_objective"] for row in controlled)
    shortfall = max(row["ideal_mu"] - row["mu"] for row in controlled)
    return [
        check("kl_control_objective_above_free_energy", excess, 1e-12, excess <= 1e-12),
        check("kl_control_mu_at_smallest_beta", controlled[-1]["mu"], 0.99, controlled[-1]["mu"] >= 0.99),
        check("kl_control_largest_mu_shortfall", shortfall, 0.3, shortfall >= 0.3),
        check("kl_control_share_of_right_answers_left", left, 0.25, left <= 0.25),
        check("forward_kl_keeps_times_more", widest / sharpest, 1.5, widest / sharpest >= 1.5),
    ]


def _conclusions(result: dict[str, Any]) -> list[str]:
    controlled, fits, ideal = result["kl_control"], result["fits"], result["ideal"]["effective_right"]
    end = controlled[-1]
    lines = [
        f"KL control at β {end['beta']:g} is right with probability {end['mu']:.3f} (ideal {end['ideal_mu']:.3f}) "
        f"and keeps {end['effective_right']:.1f} of {ideal:.1f} effective right answers."
    ]
    gap = max(controlled, key=lambda row: row["ideal_mu"] - row["mu"])
    lines.append(
        f"It falls furthest short at β {gap['beta']:g}: μ {gap['mu']:.3f} where {gap['ideal_mu']:.3f} is ideal."
    )
    spent = (end["mu"] - end["objective"]) / end["beta"]
    stuck = [row for row in controlled if end["mu"] - row["beta"] * spent > row["objective"] + 1e-3]
    lines.extend(
        f"At β {row['beta']:g} the climb from the base stops at objective {row['objective']:.3f}; "
        f"the collapsed policy has {end['mu'] - row['beta'] * spent:.3f}."
        for row in stuck
    )
    pairs = itertools.pairwise(controlled)
    before, after = max(pairs, key=lambda pair: pair[1]["mu"] - pair[0]["mu"])
    between = [row["name"] for row in fits if before["mu"] < row["mu"] < after["mu"]]
    lines.append(
        f"μ jumps from {before['mu']:.3f} to {after['mu']:.3f} between β {before['beta']:g} and {after['beta']:g}; "
        f"in between lie {', '.join(between) if between else 'none'} of the direct fits."
    )
    lines.extend(
        f"{row['name']} keeps {row['effective_right']:.1f} right answers at μ {row['mu']:.3f}." for row in fits
    )
    return lines


def _draw(result: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    controlled, fits, ideal = result["kl_control"], result["fits"], result["ideal"]
    betas = [row["beta"] for row in controlled]
    kept, mus = [row["effective_right"] for row in controlled], [row["mu"] for row in controlled]
    blue, pale, grey, orange = "#2f6fb3", "#7fa8d1", "#8a8a8a", "#c8641e"
    figure, (often, ways, trade) = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")

    fine = np.geomspace(min(betas), max(betas), 200)
    often.plot(fine, filtered.mu_of(result["p"], fine), color=grey, ls="--", label="ideal, in any family")
    often.plot(betas, mus, "o-", color=blue, label="reached by a bigram")
    often.set(ylabel="μ, probability of a right answer", ylim=(-0.02, 1.05), title="KL control: how often right")
    ways.plot(betas, np.exp([row["entropy"] for row in controlled]), "s:", color=pale, label="all answers, exp(H)")
    ways.plot(betas, kept, "o-", color=blue, label="right answers")
    ways.axhline(ideal["effective_right"], color=grey, ls="--", label="right answers of p*")
    ways.set(ylabel="effective number", yscale="log", title="KL control: in how many ways")
    for axis in (often, ways):
        axis.set(xscale="log", xlabel="β, nats of sequence KL (falling)")
        axis.invert_xaxis()
    often.legend(frameon=False, loc=(0.56, 0.3))
    ways.legend(frameon=False, loc="center left", bbox_to_anchor=(0.0, 0.62))

    trade.plot(kept, mus, "o", color=blue, label="KL control, β falling")
    trade.plot(kept, mus, color=blue, lw=0.8, ls=":")
    trade.annotate(f"β {betas[0]:g}", (kept[0], mus[0]), (0, 8), textcoords="offset points", color=blue, ha="center")
    trade.plot(
        [row["effective_right"] for row in fits], [row["mu"] for row in fits], "D-", color=orange, label="direct fits"
    )
    for row in fits:
        if row["mu"] < 0.99:  # the collapsed ones lie on one another
            at = (row["effective_right"], row["mu"])
            trade.annotate(row["name"], at, (8, 4), textcoords="offset points", color=orange)
    collapsed = [row["name"] for row in fits if row["mu"] >= 0.99]
    if collapsed:
        text = f"{', '.join(collapsed)}; β {betas[-1]:g}"
        trade.annotate(text, (kept[-1], mus[-1]), (0, 9), textcoords="offset points")
    trade.plot(ideal["effective_right"], 1.0, "*", color="black", ms=13)
    trade.annotate(
        "p*, not representable", (ideal["effective_right"], 1.0), (-10, -4), textcoords="offset points", ha="right"
    )
    trade.set(
        xlabel="effective number of right answers", ylabel="μ", xlim=(0, None), ylim=(-0.02, 1.1), title="The trade-off"
    )
    trade.legend(frameon=False, loc="center right")
    for axis in (often, ways, trade):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
