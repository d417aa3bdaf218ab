"""Questions that both the page and the API answer, on what the server knows of its run."""

from typing import Any

import numpy as np

from gating import posterior
from ops.config import RunConfig
from ops.gate import is_gated
from ops.serve.watch import Moment, Watch
from store.errors import VergeError
from store.queries import chosen, problem_history, records


class NotThere(VergeError):
    """The run does not have what was asked for."""


def problem_page(moment: Moment, where: str, sort: str, offset: int, limit: int) -> dict[str, Any]:
    """`limit` of the problems that a filter keeps, from number `offset` on, and how many it keeps.

    Raises:
        VergeError: the filter or the column to sort by cannot be read.
    """
    rows = chosen(moment.columns, where, sort)
    found = records(moment.columns, rows[offset : offset + limit])
    return {"total": len(rows), "offset": offset, "limit": limit, "problems": found}


async def history(watch: Watch, problem_id: str) -> dict[str, Any]:
    """A problem as `store.queries.problem_history` tells it, each group with the posterior's 95 % interval after it.

    Raises:
        NotThere: the run has no such problem.
    """
    await watch.now()  # the log has what it has now
    row = watch.mirror.index.get(problem_id)
    if row is None:
        raise NotThere(f"the run has no problem {problem_id[:200]!r}")
    entries = await watch.log.of_problem(watch.store, row)
    found = await problem_history(watch.store, problem_id, watch.gate, entries)
    groups = found["groups"]
    if not groups:
        return found
    a, b = (np.array([group[name] for group in groups]) for name in ("evidence_a", "evidence_b"))
    low, high = posterior.credible_interval(a, b, prior=watch.gate.prior)
    for group, lower, upper in zip(groups, low, high, strict=True):
        group |= {"interval_low": float(lower), "interval_high": float(upper)}
    return found


def changes(watch: Watch, moment: Moment, after_version: int, to_version: int | None) -> dict[str, Any]:
    """Ids newly solved and newly lost since a version, sorted; `to_version` None: the newest.

    Raises:
        VergeError: the versions are not in order.
    """
    newest = moment.version if to_version is None else to_version
    if after_version >= newest and not (after_version == newest == 0):
        raise VergeError(f"version {after_version} is not before version {newest}")
    ids = moment.columns["id"]
    solved, lost = watch.log.changes(len(ids), after_version, newest)
    return {
        "after_version": after_version,
        "to_version": newest,
        "newly_solved": sorted(ids[solved]),
        "newly_lost": sorted(ids[lost]),
    }


def gate_in_words(config: RunConfig, watch: Watch) -> dict[str, Any]:
    """The parameters of the opinions."""
    gate = watch.gate
    return {
        "k": gate.k,
        "tau": gate.tau,
        "prior": list(gate.prior),
        "gamma": config.gating.gamma,
        "advantage": config.objective.advantage,
        "used_by_the_advantage": is_gated(config),
    }
