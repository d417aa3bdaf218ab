"""Questions that both the page and the API answer, on what the server knows of its run."""

from collections.abc import Sequence
from typing import Any

from ops.serve.watch import Moment, Watch
from store.errors import VergeError
from store.queries import Gate, chosen, evaluation_rows, problem_history, records, what_if_columns


class NotThere(VergeError):
    """The run does not have what was asked for."""


def problem_page(
    moment: Moment, where: str, sort: str, offset: int, limit: int, what_if: Gate | None = None
) -> dict[str, Any]:
    """`limit` of the problems that a filter keeps, from number `offset` on, and how many it keeps.

    Args:
        what_if: another gate, whose opinions are added as `what_if_…`.

    Raises:
        VergeError: the filter or the column to sort by cannot be read.
    """
    columns = moment.columns | (what_if_columns(moment.columns, what_if) if what_if else {})
    rows = chosen(columns, where, sort)
    found = records(columns, rows[offset : offset + limit])
    return {"total": len(rows), "offset": offset, "limit": limit, "problems": found}


def evaluation_page(moment: Moment, k: Sequence[int], offset: int, limit: int) -> dict[str, Any]:
    """`limit` of what `store.queries.evaluations` tells, from number `offset` on, and how many there are."""
    found = evaluation_rows(moment.rounds, k, slice(offset, offset + limit))
    return {"total": len(moment.rounds), "offset": offset, "limit": limit, "evaluations": found}


async def history(watch: Watch, problem_id: str) -> dict[str, Any]:
    """A problem as `store.queries.problem_history` tells it.

    Raises:
        NotThere: the run has no such problem.
    """
    await watch.now()  # the log has what it has now
    row = watch.mirror.index.get(problem_id)
    if row is None:
        raise NotThere(f"the run has no problem {problem_id[:200]!r}")
    entries = await watch.log.of_problem(watch.store, row)
    return await problem_history(watch.store, problem_id, watch.gate, entries)


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
