"""A run from Python: the questions of `store.queries`, asked of its store or of a `verge serve`, and answered alike.

run = connect("runs/demo")  # or "http://127.0.0.1:8080/"
run.list_problems(where="posterior_mean < 0.1 and attempts >= 16", sort="-gate", limit=20)
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from ops.config import RunConfig
from ops.gate import gate_in_words, gate_of
from ops.runfolder import open_config, store_of
from ops.serve.client import ServedRun
from store import queries
from store.client import Store
from store.errors import VergeError

_PATIENCE_S = 5.0


class Run(Protocol):
    """What can be asked of a run, with the gate of its config. Every answer but `problem_columns` is ready for JSON."""

    def summary(self) -> dict[str, Any]:
        """The whole run in one dict, and the parameters of its gate."""

    def list_problems(
        self,
        *,
        where: str = "",
        sort: str = "",
        limit: int | None = None,
        what_if_k: float | None = None,
        what_if_tau: float | None = None,
    ) -> list[dict[str, Any]]:
        """One dict per problem: facts and opinions; with `what_if_…`, those of another gate beside them."""

    def problem_columns(self) -> dict[str, NDArray[Any]]:
        """[problems] facts and opinions, by name."""

    def problem_history(self, problem_id: str) -> dict[str, Any]:
        """One problem: its text, its facts, the opinions now, and after each of its groups, oldest first."""

    def group_log(self) -> list[dict[str, Any]]:
        """Every committed group, oldest first."""

    def changes(self, after_version: int, to_version: int) -> dict[str, list[str]]:
        """Problems newly solved and newly lost between two versions."""


def connect(where: str | Path, token: str | None = None) -> Run:
    """A run by the address of its page, or by its folder or TOML file, which say where its store is.

    Args:
        token: of a page that is served off its own machine.

    Raises:
        VergeError: there is no such run; what is asked later raises it too, where nobody answers.
    """
    if str(where).startswith(("http://", "https://")):
        return ServedRun(str(where), token)
    return StoredRun(Path(where))


class StoredRun:
    """A run by its store; the embedded one of a run that has ended is started for as long as each question takes."""

    def __init__(self, run: Path) -> None:
        """`run`: a folder or a TOML file. VergeError when it is neither."""
        self._config = open_config(run)

    def summary(self) -> dict[str, Any]:
        """As `Run`."""
        return self.ask(queries.summary) | {"gate": gate_in_words(self._config)}

    def list_problems(
        self,
        *,
        where: str = "",
        sort: str = "",
        limit: int | None = None,
        what_if_k: float | None = None,
        what_if_tau: float | None = None,
    ) -> list[dict[str, Any]]:
        """As `Run`."""

        async def listed(store: Store, gate: queries.Gate) -> list[dict[str, Any]]:
            other = gate.what_if(what_if_k, what_if_tau)
            return await queries.list_problems(store, gate, where=where, sort=sort, limit=limit, what_if=other)

        return list(self.ask(listed))

    def problem_columns(self) -> dict[str, NDArray[Any]]:
        """As `Run`."""
        return dict(self.ask(queries.problem_columns))

    def problem_history(self, problem_id: str) -> dict[str, Any]:
        """As `Run`."""
        return dict(self.ask(lambda store, gate: queries.problem_history(store, problem_id, gate)))

    def group_log(self) -> list[dict[str, Any]]:
        """As `Run`."""
        return [entry._asdict() for entry in self.ask(lambda store, _: queries.group_log(store))]

    def changes(self, after_version: int, to_version: int) -> dict[str, list[str]]:
        """As `Run`."""
        return dict(self.ask(lambda store, _: queries.changes(store, after_version, to_version)))

    def ask(self, question: Callable[[Store, queries.Gate], Awaitable[Any]]) -> Any:
        """The answer to any question of the store, which must have the run."""

        async def checked(store: Store) -> Any:
            if not await store.meta():
                raise VergeError(f"the store has no run {self._config.name!r} yet; `verge up` starts it")
            return await question(store, gate_of(self._config))

        return with_store(self._config, checked)


def with_store(config: RunConfig, work: Callable[[Store], Awaitable[Any]]) -> Any:
    """What `work` makes of a run's store."""
    with store_of(config) as (url, password):

        async def connected() -> Any:
            store = await Store.connect(url, config.name, password, patience_s=_PATIENCE_S)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(connected())
