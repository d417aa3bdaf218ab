"""Recompute what the store says from its log, and name every difference."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose

from store.client import Store
from store.queries import group_log
from store.wire import GroupEntry, ProblemFacts

_TOLERANCE = 1e-9  # the order of a sum of doubles, over thousands of groups


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found; all but `groups` and `pool` are empty in a store that is right."""

    groups: int
    """Entries of the groups log."""
    pool: int
    duplicated: tuple[str, ...]
    """Groups that the log has twice."""
    miscounted: tuple[str, ...]
    """Problems whose n, s, a, b, version or groups are not those of the log."""
    unbalanced: tuple[str, ...]
    """Identities between counters (store/README.md) that do not hold, with both sides."""
    unreadable: tuple[str, ...]
    """Groups in the pool whose payload is gone or damaged."""


async def audit(store: Store) -> Audit:
    """Check every count of a run that stands still: no actor, no learner."""
    log = await group_log(store)
    gamma = float((await store.meta())["gamma"])
    ids = await store.problem_ids()
    by_problem: defaultdict[str, list[GroupEntry]] = defaultdict(list)
    for entry in log:
        by_problem[entry.problem_id].append(entry)
    facts = zip(ids, await store.problem_facts(ids), strict=True)
    seen: set[str] = set()
    pool = [entry.id for entry, _, _ in await store.live_groups()]
    payloads = await store.fetch(pool)
    return Audit(
        groups=len(log),
        pool=len(pool),
        duplicated=tuple(entry.id for entry in log if entry.id in seen or seen.add(entry.id)),  # type: ignore[func-returns-value]
        miscounted=tuple(name for name, fact in facts if not _agrees(fact, by_problem.pop(name, []), gamma))
        + tuple(by_problem),
        unbalanced=_unbalanced(await store.counters(), len(log), len(pool), (await store.open_tickets())[0]),
        unreadable=tuple(name for name, payload in payloads.items() if payload is None),
    )


def _agrees(fact: ProblemFacts, entries: Sequence[GroupEntry], gamma: float) -> bool:
    version = max((entry.version_min for entry in entries), default=0)
    worth = [gamma ** (version - entry.version_min) for entry in entries]
    a = sum(w * entry.c for w, entry in zip(worth, entries, strict=True))
    b = sum(w * (entry.G - entry.c) for w, entry in zip(worth, entries, strict=True))
    counts = (sum(entry.G for entry in entries), sum(entry.c for entry in entries), len(entries), version)
    return (
        (fact.attempts, fact.successes, fact.groups, fact.version) == counts
        and isclose(fact.evidence_a, a, rel_tol=_TOLERANCE, abs_tol=1e-300)
        and isclose(fact.evidence_b, b, rel_tol=_TOLERANCE, abs_tol=1e-300)
    )


def _unbalanced(counters: Mapping[str, int], log: int, pool: int, open_tickets: int) -> tuple[str, ...]:
    def total(*names: str) -> int:
        return sum(counters[name] for name in names)

    ends = ("used", "expired", "zero_mass", "lost_payload")
    identities = {
        "committed = log": (counters["committed"], log),
        "issued = committed + refused + poisoned + open": (
            counters["issued"],
            total("committed", "refused", "poisoned") + open_tickets,
        ),
        "committed = pool + used + expired + zero_mass + lost_payload": (counters["committed"], pool + total(*ends)),
        "refunded = refused + poisoned + expired + zero_mass + lost_payload + rolled_back": (
            counters["refunded"],
            total("refused", "poisoned", "rolled_back", *ends[1:]),
        ),
    }
    return tuple(f"{name}: {left} ≠ {right}" for name, (left, right) in identities.items() if left != right)
