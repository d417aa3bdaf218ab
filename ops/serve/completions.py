"""The completions of a group as text, with the version that wrote each token and how old that was."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ops.config import RunConfig
from ops.serve.watch import Watch
from store.wire import Completion

MAX_COMPLETIONS = 64
"""Completions of a group that are shown; the rest is counted."""
MAX_TOKENS = 4096
"""Tokens of a completion that are shown; the rest is counted."""

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive tokens written by one version. `lag` in versions, when the group was drawn (now, if it was not)."""

    text: str
    version: int
    lag: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ShownCompletion:
    """One completion: `tokens` it has, of which the `pieces` cover the first MAX_TOKENS."""

    verdict: str
    reward: float
    finish_reason: str
    tokens: int
    mean_logprob: float | None
    """Mean of log μ(token) over the tokens that have one, nats; None where none has."""
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class ShownGroup:
    """A group that is still in the pool."""

    id: str
    drawn_at_step: int | None
    """The last step that drew it; None before the first."""
    version_at_draw: int
    """The learner's version at that step, which lags are counted from; the newest version before the first."""
    size: int
    """Completions of the group, of which the first MAX_COMPLETIONS are here."""
    completions: tuple[ShownCompletion, ...]


class Texts:
    """Turns stored groups into text, with the tokenizer that lies beside the weights: nothing is fetched or built.

    It is loaded when the first group is asked for; where there is none, token ids stand for the text.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._decode: Decode | None = None

    async def show(self, watch: Watch, group_id: str) -> ShownGroup | None:
        """The completions of a group; None once it has left the pool, and its payload with it."""
        (step,) = await watch.store.last_steps([group_id])
        payload = (await watch.store.fetch([group_id], count=False))[group_id] if step is not None else None
        if step is None or payload is None:
            return None
        version = (await watch.now()).version if step < 0 else await self._version_before(watch, step)
        decode = await self._decoder(watch)
        some = payload.completions[:MAX_COMPLETIONS]
        shown = await asyncio.to_thread(lambda: tuple(_shown(item, version, decode) for item in some))
        return ShownGroup(group_id, None if step < 0 else step, version, len(payload.completions), shown)

    async def _version_before(self, watch: Watch, step: int) -> int:
        """The version with which a step began: the newest one that an earlier step had published."""
        versions = [manifest.version for manifest in await watch.store.manifests() if manifest.step < step]
        return max(versions, default=0)

    async def _decoder(self, watch: Watch) -> Decode:
        if self._decode is None:
            found = await watch.store.manifests()
            published = [Path(manifest.path) for manifest in (*found[-1:], *found[:1])]
            # The run's folder may have been moved since they were published.
            here = [self._config.run_folder / "weights" / path.name for path in published]
            for folder in (*published, *here, Path(self._config.model.path)):
                if (folder / "tokenizer.json").is_file():
                    self._decode = await asyncio.to_thread(_tokenizer, folder / "tokenizer.json")
                    break
            else:
                return lambda ids: "".join(f"⟨{token}⟩" for token in ids)
        return self._decode


def _tokenizer(file: Path) -> Decode:
    from tokenizers import Tokenizer  # not transformers, whose import takes seconds

    tokenizer = Tokenizer.from_file(str(file))
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


def _shown(item: Completion, version: int, decode: Decode) -> ShownCompletion:
    ids = item.token_ids[:MAX_TOKENS].tolist()
    ends = [0, *(min(span.end, len(ids)) for span in item.spans if span.start < len(ids))]
    # A token's text can depend on those before it, so each piece is what the text gains by its tokens.
    texts = [decode(ids[:end]) for end in ends]
    pieces = tuple(
        Piece(
            texts[i + 1][len(texts[i]) :] if texts[i + 1].startswith(texts[i]) else decode(ids[start:end]),
            item.spans[i].version, version - item.spans[i].version, start, end,
        )
        for i, (start, end) in enumerate(pairwise(ends))
    )  # fmt: skip
    known = [value for value in item.logprobs.tolist() if value == value]
    return ShownCompletion(
        item.verdict.value,
        item.reward,
        item.finish_reason,
        len(item.token_ids),
        sum(known) / len(known) if known else None,
        pieces,
    )
