"""Evaluation rounds: who has one under way, and what is known of those that are finished."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgpack

from store.keys import Keys
from store.link import Argument, Link
from store.problems import listed

ROUNDS_LOG = 1000
"""Finished rounds that are kept, the newest."""


@dataclass(frozen=True, slots=True)
class Tally:
    """One problem's completions. `n` of them were judged, `errors` were not (the verifier's or the engine's fault).

    `distinct` counts the different texts among the `correct`; `tokens` those of the judged; `surprisal` is
    −Σ log μ(token) over them in nats, whose mean is an unbiased estimate of the token entropy.
    """

    id: str
    n: int
    correct: int
    distinct: int
    truncated: int
    errors: int
    tokens: int
    surprisal: float


_COUNTS = tuple(field.name for field in fields(Tally) if field.name != "id")


@dataclass(frozen=True, slots=True)
class Claim:
    """A round that an actor has under way, and that is due only `every` versions after the last finished one."""

    version: int
    every: int
    token: str
    step: int
    """The learner's, whose weights the version is."""


@dataclass(frozen=True, slots=True)
class Round:
    """A finished round: `samples` completions of every held-out problem, all written by `version`.

    `began_s`, `time_s`: its begin and end, Unix seconds of the actor's clock.
    """

    version: int
    step: int
    actor: str
    began_s: float
    time_s: float
    samples: int
    tallies: tuple[Tally, ...]


class Evaluations:
    """The life of a round.

    due ──claim──▶ under way ──finish──▶ finished, in the log
     ▲                 │
     └──lease over,────┘
        give_back

    Invariants: one round at most is under way, and one actor does all of it. What is in the log is whole and of one
    version, because one call writes it; versions there rise by at least what `claim_round` asked for.
    """

    def __init__(self, link: Link, keys: Keys, lease_s: float) -> None:
        self._link = link
        self._keys = keys
        self._lease_ms = int(1000 * lease_s)

    async def claim_round(self, version: int, every: int) -> Claim | None:
        """Begin a round at `version`, which the run must have announced.

        Returns:
            None while another round is under way, and until the last finished one is `every` versions old.
        """
        token = secrets.token_hex(8)
        found = await self._claim(version, every, token)
        return Claim(version, every, token, int(found[0])) if found else None

    async def renew_round(self, claim: Claim) -> bool:
        """Make the lease last a whole `lease_s` again; False when the round is another's now, or no longer due."""
        return bool(await self._claim(claim.version, claim.every, claim.token))

    async def _claim(self, version: int, every: int, token: str) -> Any:
        keys = self._keys
        arguments: list[Argument] = [token, version, every, self._lease_ms, keys.weights_log]
        return await self._link.run("claim_round", [keys.evaluating, keys.evaluations], arguments)

    async def give_round_back(self, claim: Claim) -> None:
        """Let others begin a round at once, if this one was still the caller's."""
        await self._link.run("hold", [self._keys.evaluating], [claim.token, 0])

    async def finish_round(self, claim: Claim, found: Round) -> bool:
        """Keep what a round has found; False, and nothing is kept, when the round is another's now."""
        keys = self._keys
        columns = [[getattr(tally, name) for tally in found.tallies] for name in _COUNTS]
        kept = await self._link.run(
            "finish_round",
            [keys.evaluating, keys.evaluations],
            [claim.token, claim.version, claim.every, ROUNDS_LOG,
             "step", found.step, "actor", found.actor, "began_s", repr(found.began_s), "time_s", repr(found.time_s),
             "samples", found.samples, "tallies", msgpack.packb(columns)],
        )  # fmt: skip
        return bool(kept)

    async def round_under_way(self) -> bool:
        """Whether an actor that lives has a round."""
        return await self._link.call(lambda redis: redis.get(self._keys.evaluating)) is not None

    async def rounds(self, after_version: int = -1) -> list[Round]:
        """The finished rounds of later versions, oldest first."""
        start = f"({after_version}-1" if after_version >= 0 else "-"
        entries = await self._link.call(lambda redis: redis.xrange(self._keys.evaluations, min=start))
        if not entries:
            return []
        # The columns of a round are in the order of the held-out problems, to which others are only ever appended.
        ids = await listed(self._link, self._keys.held_out)
        return [_round(values, ids) for _, values in entries]


def _round(values: Sequence[bytes], ids: Sequence[str]) -> Round:
    found = dict(zip(values[::2], values[1::2], strict=True))
    columns = msgpack.unpackb(found[b"tallies"])
    tallies = tuple(Tally(*row) for row in zip(ids, *columns, strict=False))  # there may be more problems by now
    return Round(
        int(found[b"version"]), int(found[b"step"]), found[b"actor"].decode(), float(found[b"began_s"]),
        float(found[b"time_s"]), int(found[b"samples"]), tallies,
    )  # fmt: skip
