"""`verge problems add`: more problems for a run, while it trains or between two sittings."""

import asyncio

from actors.chosen_rows import FileProblems, read_problems
from actors.config import ProblemsConfig
from actors.problems import load_problems
from ops.config import RunConfig
from ops.models import resolve_model
from ops.prepare import check_fit
from ops.runfolder import store_of
from store.client import Store
from store.errors import VergeError
from store.problems import chunks

_AT_ONCE = 1000


def add_problems(
    config: RunConfig, source: str, skip_present: bool, problems: ProblemsConfig | None = None
) -> tuple[int, int]:
    """Add the problems of a file or folder to the run's store, starting its embedded server if none is running.

    The learner of a live run finds them within a step. They are facts of the run: resuming it needs no file of them.

    Args:
        problems: how the rows of `source` are read, where not as those of the run.
        skip_present: leave out problems that the run has already, as after an `add` that was interrupted.

    Returns:
        How many were added, and how many the run has now.

    Raises:
        VergeError: a bad row; a prompt that does not fit; an id twice in the file, or in the run already (with the
            same id and another content even when they may be left out); a problem that is held out; no such run.
    """
    given = read_problems((problems or config.problems).model_copy(update={"source": source}))
    check_fit(config, resolve_model(config.model.path), given)
    _check_not_held_out(config, given)
    with store_of(config) as (url, password):
        return asyncio.run(_add(config, given, skip_present, url, password))


def _check_not_held_out(config: RunConfig, given: FileProblems) -> None:
    held_out = load_problems(config.problems).held_out
    ids = {problem.id for problem in held_out}
    prompts = {str(problem.prompt) for problem in held_out}
    for problem in given:
        if problem.id in ids or str(problem.prompt) in prompts:
            what = "id" if problem.id in ids else "prompt"
            raise VergeError(
                f"problem {problem.id!r} of {given.config.source} has the {what} of a problem that the run holds out to"
                " measure with: leave it out"
            )


async def _add(
    config: RunConfig, given: FileProblems, skip_present: bool, url: str, password: str | None
) -> tuple[int, int]:
    store = await Store.connect(url, config.name, password, patience_s=5.0)
    try:
        if not await store.meta():
            raise VergeError(f"the store has no run {config.name!r} yet; `verge up` starts it")
        if not skip_present:
            await _check_absent(store, given)
        added = await store.add_problems(given)
        return added, len(await store.problem_ids())
    finally:
        await store.close()


async def _check_absent(store: Store, given: FileProblems) -> None:
    for chunk in chunks(given, _AT_ONCE):
        rows = await store.problem_rows([problem.id for problem in chunk], ["verifier"])
        for problem, (there,) in zip(chunk, rows, strict=True):
            if there:
                raise VergeError(
                    f"problem {problem.id!r} of {given.config.source} is in the run already; give it another id, or"
                    " leave out with --skip-present what the run has"
                )
