"""Questions about a run, answered from its facts while it trains: plain dicts, ready for JSON (no NaN, no tuple).

Opinions (posterior mean, gate) are formed here and now by `gating`, from parameters that the caller passes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gating import bbg, posterior
from store.client import Store
from store.errors import VergeError
from store.evaluations import Round
from store.groups import stream_order
from store.mirror import Mirror
from store.scores import of_round
from store.where import select, unknown_column
from store.wire import GroupEntry, ProblemFacts

BINS = 10
_LOG_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Gate:
    """The parameters of the opinions: BBG's k and τ, and the prior of the posterior (DESIGN §5)."""

    k: float = 8
    tau: float = 0.01
    prior: tuple[float, float] = (1.0, 1.0)

    def what_if(self, k: float | None, tau: float | None) -> "Gate | None":
        """This gate with another k or τ; None where neither is given."""
        if k is None and tau is None:
            return None
        return Gate(self.k if k is None else k, self.tau if tau is None else tau, self.prior)


async def problem_columns(
    store: Store, gate: Gate, what_if: Gate | None = None, mirror: Mirror | None = None
) -> dict[str, NDArray[Any]]:
    """[problems] facts, and opinions at the run's current version, by name.

    Args:
        what_if: another gate, whose opinions on the same facts are added as `what_if_…`.
        mirror: brought up to date and read, where the caller keeps one; else the facts are loaded.

    Raises:
        VergeError: the run does not exist, or has no problems yet.
    """
    mirror = Mirror(store, pool=False) if mirror is None else mirror
    await mirror.sync()
    if not mirror.ids:
        raise VergeError(f"run {store.keys.run!r} has no problems yet")
    manifest = await store.manifest()
    now = manifest.version if manifest else 0
    a, b = mirror.evidence_at(now)
    with np.errstate(invalid="ignore"):
        solve_rate = mirror.successes / mirror.attempts
    columns: dict[str, NDArray[Any]] = {
        "id": np.array(mirror.ids, dtype=object),
        "attempts": mirror.attempts.copy(),
        "successes": mirror.successes.copy(),
        "solve_rate": solve_rate,
        "groups": mirror.groups.copy(),
        "version": mirror.version.copy(),
        "evidence_a": a,
        "evidence_b": b,
    }
    return columns | _opinions(a, b, gate) | (what_if_columns(columns, what_if) if what_if else {})


def what_if_columns(columns: Mapping[str, NDArray[Any]], gate: Gate) -> dict[str, NDArray[Any]]:
    """Another gate's opinions on the facts of `problem_columns`, as `what_if_…`."""
    opinions = _opinions(columns["evidence_a"], columns["evidence_b"], gate)
    return {f"what_if_{name}": column for name, column in opinions.items()}


def _opinions(a: NDArray[np.float64], b: NDArray[np.float64], gate: Gate) -> dict[str, NDArray[Any]]:
    return {
        "posterior_mean": posterior.mean(a, b, gate.prior),
        "pass_at_k": posterior.pass_at_k(a, b, gate.k, gate.prior),
        "gate": bbg.gate(a, b, gate.k, gate.tau, gate.prior),
    }


async def list_problems(
    store: Store,
    gate: Gate,
    *,
    where: str = "",
    sort: str = "",
    limit: int | None = None,
    what_if: Gate | None = None,
    mirror: Mirror | None = None,
) -> list[dict[str, Any]]:
    """One dict per problem: facts and opinions.

    Args:
        where: a filter in the language of store/where.py; "" keeps all.
        sort: a column, descending after a minus sign ("-gate"); "" keeps the order in which problems were added.
            Problems for which it is not defined (the solve rate of one not attempted) come last.
        limit: at most so many rows.

    Raises:
        VergeError: the run does not exist, or `where` or `sort` cannot be read.
    """
    columns = await problem_columns(store, gate, what_if, mirror)
    return records(columns, chosen(columns, where, sort)[:limit])


def chosen(columns: Mapping[str, NDArray[Any]], where: str = "", sort: str = "") -> NDArray[np.intp]:
    """The rows that `list_problems` would list, in its order.

    Raises:
        VergeError: `where` or `sort` cannot be read.
    """
    rows = np.arange(len(columns["id"]))
    if where:
        rows = rows[select(where, columns)]
    if sort:
        rows = rows[_order(sort, {name: column[rows] for name, column in columns.items()})]
    return rows


def _order(sort: str, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.intp]:
    name = sort.removeprefix("-")
    if name not in columns:
        raise VergeError(unknown_column(name, columns))
    key = columns[name]
    if key.dtype.kind == "O":
        order = np.argsort(key.astype(str), kind="stable")
        return order[::-1] if sort.startswith("-") else order
    # NaN sorts last either way; stable, so that equal rows keep the order in which problems were added.
    return np.argsort(-key if sort.startswith("-") else key, kind="stable")


def records(columns: Mapping[str, NDArray[Any]], rows: NDArray[np.intp]) -> list[dict[str, Any]]:
    """One dict per row, ready for JSON."""
    values = [_plain(column[rows]) for column in columns.values()]
    return [dict(zip(columns, record, strict=True)) for record in zip(*values, strict=True)]


def _plain(column: NDArray[Any]) -> list[Any]:
    """Python values; None for NaN, which JSON does not have."""
    if column.dtype.kind == "f":
        return [None if np.isnan(value) else value for value in column.tolist()]
    return list(column.tolist())


async def summary(store: Store, gate: Gate, mirror: Mirror | None = None) -> dict[str, Any]:
    """The whole run in one dict: phase, weights, problems, groups, tickets, actors, dynamics, histograms."""
    return await summary_of(store, await problem_columns(store, gate, mirror=mirror))


async def summary_of(store: Store, columns: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """`summary`, where the caller has the `problem_columns` already."""
    phase, reason = await store.phase()
    manifest = await store.manifest()
    counters = await store.counters()
    open_tickets, leased = await store.open_tickets()
    attempted, solved = columns["attempts"] > 0, columns["successes"] > 0
    left = ("used", "expired", "zero_mass", "lost_payload")
    found = {
        "run": store.keys.run,
        "phase": phase,
        "reason": reason,
        "weights": asdict(manifest) if manifest else None,
        "problems": {
            "total": len(attempted),
            "attempted": int(attempted.sum()),
            "solved": int(solved.sum()),
            "attempted_unsolved": int((attempted & ~solved).sum()),
            "gate_open": int((columns["gate"] > 0).sum()),
        },
        "groups": counters | {"pool": counters["committed"] - sum(counters[name] for name in left)},
        "tickets": {"open": open_tickets, "leased": leased},
        "refusals": await store.refusals(5),
        "actors": await store.actors(),
        "dynamics": await store.dynamics(),
        "histograms": {name: histogram(columns[name]) for name in ("posterior_mean", "gate")},
        "unsolved_with_most_attempts": _most_attempts(columns, attempted & ~solved),
    }
    return dict(json_ready(found))


def histogram(values: NDArray[np.float64]) -> list[int]:
    """Counts of values in [0, 1] in BINS equal bins."""
    return np.histogram(values, BINS, (0.0, 1.0))[0].tolist()


def _most_attempts(
    columns: Mapping[str, NDArray[Any]], among: NDArray[np.bool_], count: int = 5
) -> list[dict[str, Any]]:
    rows = np.flatnonzero(among)
    rows = rows[np.argsort(-columns["attempts"][rows], kind="stable")][:count]
    wanted = ("id", "attempts", "gate")
    return records({name: columns[name] for name in wanted}, rows)


async def problem_history(
    store: Store, problem_id: str, gate: Gate, entries: Sequence[GroupEntry] | None = None
) -> dict[str, Any]:
    """One problem: its text, its facts, the opinions now, and after each of its groups with the 95 % interval.

    Args:
        entries: the problem's groups, oldest first, where the caller has them; else the whole log is read.

    Raises:
        VergeError: the run does not have the problem.
    """
    found = await store.problem(problem_id)
    if found is None:
        raise VergeError(f"run {store.keys.run!r} has no problem {problem_id!r}; `verge state list` shows those it has")
    problem, facts = found
    if entries is None:
        entries = [entry for entry in await group_log(store) if entry.problem_id == problem_id]
    gamma = float((await store.meta())["gamma"])
    manifest = await store.manifest()
    a, b = posterior.evidence_at(
        facts.evidence_a, facts.evidence_b, facts.version, manifest.version if manifest else 0, gamma
    )
    history = {
        "problem": asdict(problem),
        "facts": _known(facts),
        "opinions": {name: float(value) for name, value in _opinions(a, b, gate).items()},
        "groups": _history(entries, gamma, gate),
    }
    return dict(json_ready(history))


def json_ready(value: Any) -> Any:
    """The same value as JSON gives it back: None for a number that it does not have, a list for a tuple."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    return value


def _known(facts: ProblemFacts) -> dict[str, Any]:
    known = asdict(facts)
    for name in ("first_success", "last_success", "last_seen"):
        known[f"{name}_s"] = stream_order(known[name])[0] / 1000 if known[name] else None
    return known


def _history(entries: Sequence[GroupEntry], gamma: float, gate: Gate) -> list[dict[str, Any]]:
    a = b = version = np.zeros(())
    steps = []
    for entry in entries:
        a, b, version = posterior.discount(a, b, version, entry.c, entry.G, entry.version_min, gamma)
        now = {name: float(value) for name, value in _opinions(a, b, gate).items()}
        steps.append({**entry._asdict(), "evidence_a": float(a), "evidence_b": float(b), **now})
    if steps:
        after_a, after_b = (np.array([step[name] for step in steps]) for name in ("evidence_a", "evidence_b"))
        low, high = posterior.credible_interval(after_a, after_b, prior=gate.prior)
        for step, lower, upper in zip(steps, low.tolist(), high.tolist(), strict=True):
            step |= {"interval_low": lower, "interval_high": upper}
    return steps


async def group_log(store: Store) -> list[GroupEntry]:
    """Every committed group of the run, oldest first."""
    log: list[GroupEntry] = []
    while batch := await store.entries(log[-1].stream_id if log else "0-0", _LOG_BATCH):
        log.extend(batch)
    return log


async def evaluations(store: Store, k: Sequence[int]) -> list[dict[str, Any]]:
    """One dict per finished evaluation round, oldest first: its facts, and its pass@k, also against the first."""
    return evaluation_rows(await store.rounds(), k)


def evaluation_rows(rounds: Sequence[Round], k: Sequence[int], page: slice = slice(None)) -> list[dict[str, Any]]:
    """`evaluations`, or a page of them, where the caller has all the rounds."""
    return [json_ready(of_round(one, rounds[0], k)) for one in rounds[page]]


async def changes(store: Store, after_version: int, to_version: int) -> dict[str, list[str]]:
    """Problems newly solved and newly lost between two versions, by the groups that those versions wrote.

    Newly solved: the first success was after `after_version` and the problem had been attempted by then. Newly lost:
    there was a success by `after_version`, and later attempts up to `to_version` had none.
    """
    if after_version >= to_version:
        raise VergeError(f"version {after_version} is not before version {to_version}")
    tried: set[str] = set()
    solved: set[str] = set()
    tried_later: set[str] = set()
    solved_later: set[str] = set()
    for entry in await group_log(store):
        if entry.version_max <= after_version:
            tried.add(entry.problem_id)
            if entry.c:
                solved.add(entry.problem_id)
        elif entry.version_max <= to_version:
            tried_later.add(entry.problem_id)
            if entry.c:
                solved_later.add(entry.problem_id)
    return {
        "newly_solved": sorted((tried & solved_later) - solved),
        "newly_lost": sorted((solved & tried_later) - solved_later),
    }
