"""What evaluations say: pass@k with standard errors, one alone and one against another of the same problems."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gating import passk
from store.evaluations import Round, Tally


def scores(tallies: Sequence[Tally], ks: Sequence[int]) -> dict[str, Any]:
    """pass@k with standard errors over problems, and what the completions were like.

    `pass_at_k` has those k for which every problem has enough judged completions. `entropy` is in nats per token.
    """
    n, c, errors = (column(tallies, name) for name in ("n", "correct", "errors"))
    tokens, judged = column(tallies, "tokens").sum(), max(n.sum(), 1)
    known = [k for k in ks if k <= n.min()]
    mean, error = passk.curve(n, c, np.asarray(known)) if known else (np.zeros(0), np.zeros(0))
    return {
        "pass_at_k": [{"k": k, "mean": float(m), "se": float(e)} for k, m, e in zip(known, mean, error, strict=True)],
        "solved": int((c > 0).sum()),
        "distinct_right_answers": float(column(tallies, "distinct").mean()),
        "mean_tokens": float(tokens / judged),
        "entropy": float(column(tallies, "surprisal").sum() / max(tokens, 1)),
        "truncated_share": float(column(tallies, "truncated").sum() / judged),
        "error_share": float(errors.sum() / max(n.sum() + errors.sum(), 1)),
    }


def gains(before: Sequence[Tally], after: Sequence[Tally], ks: Sequence[int]) -> list[dict[str, Any]]:
    """For each k, pass@k of both and the mean difference, with its standard error paired over problems.

    Args:
        before, after: of the same problems in the same order, each with at least max(ks) judged completions.
    """
    rows = []
    for k in ks:
        was, is_now = [passk.pass_at_k(column(side, "n"), column(side, "correct"), k) for side in (before, after)]
        gain, error = passk.paired_difference(is_now, was)
        rows.append({"k": k, "before": float(was.mean()), "after": float(is_now.mean()), "gain": gain, "se": error})
    return rows


def changed(before: Sequence[Tally], after: Sequence[Tally]) -> tuple[list[int], list[int]]:
    """The places of the problems that only `after` has solved, and of those that only `before` has."""
    pairs = [(old.correct > 0, new.correct > 0) for old, new in zip(before, after, strict=True)]
    return (
        [place for place, (was, is_now) in enumerate(pairs) if is_now and not was],
        [place for place, (was, is_now) in enumerate(pairs) if was and not is_now],
    )


def of_round(one: Round, first: Round, ks: Sequence[int]) -> dict[str, Any]:
    """A round's facts, its `scores`, and what was gained and lost since the first."""
    both = min(len(first.tallies), len(one.tallies))  # problems that were added since are left out
    before, now = first.tallies[:both], one.tallies[:both]
    fewest = min(tally.n for tally in (*before, *now))
    solved, lost = changed(before, now)
    facts = {name: getattr(one, name) for name in ("version", "step", "actor", "began_s", "time_s", "samples")}
    return facts | {
        "problems": len(one.tallies),
        **scores(one.tallies, ks),
        "gains": gains(before, now, [k for k in ks if k <= fewest]),
        "newly_solved": len(solved),
        "newly_lost": len(lost),
    }


def column(tallies: Sequence[Tally], name: str) -> NDArray[np.float64]:
    """[problems] one of the counts."""
    return np.array([getattr(tally, name) for tally in tallies], dtype=np.float64)
