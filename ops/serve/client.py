"""The questions of `store.queries` asked of a `verge serve` (ops/client.py asks the store itself)."""

import json
import math
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from store.errors import VergeError

_WITHIN_S = 60.0
_PAGE = 1000


class ServedRun:
    """A run over HTTP; the answers are those of the functions of the same names, with the server's gate.

        run = ServedRun("http://127.0.0.1:8080/")
        run.list_problems(where="posterior_mean < 0.1 and attempts >= 16", sort="-gate", limit=20)

    What the server refuses, or that it does not answer, is a VergeError.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        """`token`: off the server's own machine, the first line of its token file."""
        if not url.startswith(("http://", "https://")):
            raise VergeError(f"{url!r} is not the address of a page: it begins with http:// or https://")
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def summary(self) -> dict[str, Any]:
        """The whole run in one dict."""
        return self._ask("summary")

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
        what_if = {"what_if_k": what_if_k, "what_if_tau": what_if_tau}
        asked = {name: value for name, value in what_if.items() if value is not None}
        return self._pages("problems", "problems", limit, where=where, sort=sort, **asked)

    def problem_columns(self) -> dict[str, NDArray[Any]]:
        """[problems] facts and opinions, by name."""
        rows = self.list_problems()
        return {name: _column([row[name] for row in rows]) for name in (rows[0] if rows else ())}

    def group_log(self) -> list[dict[str, Any]]:
        """Every committed group, oldest first."""
        return self._pages("groups", "groups", None)

    def problem_history(self, problem_id: str) -> dict[str, Any]:
        """One problem: its text, its facts, the opinions now, and after each of its groups, oldest first."""
        found = self._ask("problem", id=problem_id, limit=1)
        groups = self._pages("problem", "groups", None, id=problem_id)[::-1]
        return {name: found[name] for name in ("problem", "facts", "opinions")} | {"groups": groups}

    def changes(self, after_version: int, to_version: int) -> dict[str, list[str]]:
        """Problems newly solved and newly lost between two versions."""
        found = self._ask("changes", after_version=after_version, to_version=to_version)
        return {name: found[name] for name in ("newly_solved", "newly_lost")}

    def evaluations(self) -> list[dict[str, Any]]:
        """One dict per finished evaluation round, oldest first: its facts, and its pass@k, also against the first."""
        return self._pages("evaluations", "evaluations", None)

    def _pages(self, path: str, name: str, limit: int | None, **question: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while limit is None or len(found) < limit:
            wanted = _PAGE if limit is None else min(_PAGE, limit - len(found))
            page = self._ask(path, **question, offset=len(found), limit=wanted)
            found += page[name]
            if len(page[name]) < wanted:
                break
        return found

    def _ask(self, path: str, **question: Any) -> dict[str, Any]:
        request = urllib.request.Request(f"{self._url}/api/{path}?{urlencode(question)}", headers=self._headers)  # noqa: S310 - http only
        try:
            with urllib.request.urlopen(request, timeout=_WITHIN_S) as answer:  # noqa: S310
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            raise VergeError(f"{self._url}: {_why(error)}") from None
        except (OSError, ValueError) as error:
            raise VergeError(f"{self._url} does not answer as a verge serve would: {error}") from None


def _column(values: list[Any]) -> NDArray[Any]:
    """A column as it was before JSON, which has no NaN."""
    if isinstance(values[0], str):
        return np.array(values, dtype=object)
    return np.array([math.nan if value is None else value for value in values])


def _why(error: urllib.error.HTTPError) -> str:
    try:
        detail = json.load(error)["detail"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"status {error.code}"
    return detail if isinstance(detail, str) else "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in detail)
