"""Rollout groups to packed micro-batches in which a group's prompt is computed once.

A row holds `[prompt][c1][c2]…[cG]` of one group: every completion attends to the prompt and to itself, never to a
sibling, and its positions continue the prompt's. The last token of a completion predicts nothing, so it is not fed at
all. When a dense mask over a long row would cost more than the shared prompt saves, the group is split over several
rows (`branches_per_row`), and several short groups share a row where that row would otherwise be padding.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Completionwise = list[list[DoubleArray]]
"""float64[T] for each completion of each group."""

ATTENTION_SLOWNESS = 3.0
"""A masked attention FLOP takes about this many times longer than a matmul FLOP (measured on CPU, sdpa)."""


@dataclass(frozen=True, slots=True)
class TrainCompletion:
    """One completion to train on: ids int64[T], behaviour log-probs float32[T] (NaN = missing), its advantage.

    `proximal`: log-probs of the policy at the step's start, float64[T], where the correction tells it from the policy.
    `mark`: int64[T], what `learner.selection` says of the tokens.
    """

    token_ids: IntArray
    behaviour: FloatArray
    advantage: float
    proximal: DoubleArray | None = None
    mark: IntArray | None = None


@dataclass(frozen=True, slots=True)
class TrainGroup:
    """What a rank trains on of one rollout group. `weight` is the draw weight, shared by its completions;
    `mini_batch` says in which of the step's mini-batches.

    `eligible` and `eligible_tokens` also count the completions left out because their advantage is 0: they belong to
    the mean, they only have no gradient.
    """

    id: str
    prompt_ids: IntArray
    completions: tuple[TrainCompletion, ...]
    weight: float
    eligible: int
    eligible_tokens: int
    mini_batch: int = 0

    @property
    def tokens(self) -> int:
        """Tokens fed to the model when the prompt is shared."""
        return len(self.prompt_ids) + sum(len(c.token_ids) - 1 for c in self.completions)


@dataclass(frozen=True, slots=True)
class Shape:
    """What the layout needs to know of a model: FLOPs of one token's matmuls, and of one attended pair."""

    flops_per_token: float
    flops_per_pair: float

    @classmethod
    def of(cls, parameters: int, layers: int, width: int) -> "Shape":
        """`parameters` without embeddings; a pair costs a multiply-add in QKᵀ and one in the weighted sum."""
        return cls(2.0 * parameters, 4.0 * width * layers)

    def row_cost(self, length: int) -> float:
        return self.flops_per_token * length + ATTENTION_SLOWNESS * self.flops_per_pair * length * length


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """R rows padded to length L; N trained tokens of S completions, the tokens of a completion adjacent, in order.

    input_ids, position_ids: int64[R, L]. document: int64[R, L], which group of the row (−1 = padding); branch:
    int64[R, L], 0 = prompt, i ≥ 1 = the group's i-th completion. source: int64[N], index into R·L of the position that
    predicts the token; target: int64[N]; behaviour: float32[N]; proximal: float64[N] (NaN: that of the policy itself);
    mark: int64[N]; sample: int64[N] in [0, S). advantage, weight: float64[S]; origin: int64[S, 2], the index of the
    group among those that were packed and of the completion in it.
    """

    input_ids: IntArray
    position_ids: IntArray
    document: IntArray
    branch: IntArray
    source: IntArray
    target: IntArray
    behaviour: FloatArray
    proximal: DoubleArray
    mark: IntArray
    sample: IntArray
    advantage: DoubleArray
    weight: DoubleArray
    origin: IntArray

    def mask(self) -> BoolArray:
        """Who attends to whom: bool[R, L, L]. Padding attends to itself, so that no softmax is empty."""
        length = self.input_ids.shape[1]
        earlier = np.tri(length, dtype=bool)
        same = self.document[:, :, None] == self.document[:, None, :]
        visible = (self.branch[:, None, :] == 0) | (self.branch[:, None, :] == self.branch[:, :, None])
        allowed: BoolArray = earlier & same & visible
        allowed |= np.eye(length, dtype=bool)
        return allowed


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some completions of one group, which will be neighbours in a row. `group`, `first`: where they come from."""

    prompt_ids: IntArray
    completions: tuple[TrainCompletion, ...]
    weight: float
    group: int
    first: int
    length: int = field(init=False)
    """Tokens of the row that it takes. Kept, for laying out asks for it once for every row there is."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", len(self.prompt_ids) + sum(len(c.token_ids) - 1 for c in self.completions))


def branches_per_row(prompt: int, lengths: Sequence[int], shape: Shape) -> int:
    """How many completions should share one copy of the prompt, so that matmul and attention together cost least."""
    mean = sum(lengths) / len(lengths)
    costs = {}
    for branches in range(1, len(lengths) + 1):
        rows = -(-len(lengths) // branches)
        costs[branches] = rows * shape.row_cost(round(prompt + branches * (mean - 1)))
    return min(costs, key=lambda branches: (costs[branches], -branches))


def pack(groups: Iterable[TrainGroup], shape: Shape, token_budget: int) -> list[MicroBatch]:
    """Lay groups out in micro-batches of at most `token_budget` padded tokens (one row may exceed it alone).

    Rows of a micro-batch differ in length by less than a factor of two; the packing never changes a gradient.
    """
    pieces = [piece for index, group in enumerate(groups) for piece in _split(index, group, shape)]
    pieces.sort(key=lambda piece: -piece.length)
    batches = []
    while pieces:
        length = pieces[0].length
        most_rows = max(1, token_budget // length)
        rows: list[list[_Piece]] = []
        space: list[int] = []
        left = []
        for piece in pieces:
            fits = next((row for row, free in enumerate(space) if free >= piece.length), None)
            if fits is not None:
                rows[fits].append(piece)
                space[fits] -= piece.length
            elif len(rows) < most_rows and 2 * piece.length > length:
                rows.append([piece])
                space.append(length - piece.length)
            else:
                left.append(piece)
        batches.append(_layout(rows, length))
        pieces = left
    return batches


def balance(tokens: Sequence[int], ranks: int, mini_batches: int = 1) -> list[list[int]]:
    """Split indices over ranks so that their token sums are close: longest first, to the emptiest rank.

    Index i is of mini-batch i mod `mini_batches`; ranks wait for each other after each, so each is balanced by itself.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for mini_batch in range(mini_batches):
        load = [0] * ranks
        for index in sorted(range(mini_batch, len(tokens), mini_batches), key=lambda i: (-tokens[i], i)):
            rank = min(range(ranks), key=lambda r: (load[r], r))
            shares[rank].append(index)
            load[rank] += tokens[index]
    return [sorted(share) for share in shares]


def unpack(
    groups: Sequence[TrainGroup], batches: Sequence[MicroBatch], values: Sequence[DoubleArray]
) -> Completionwise:
    """Values of the tokens of packed groups, float64[N] for each micro-batch, back by group and completion."""
    found = [[np.zeros(0)] * len(group.completions) for group in groups]
    for batch, of_batch in zip(batches, values, strict=True):
        ends = np.cumsum(np.bincount(batch.sample, minlength=len(batch.origin)))[:-1]
        # Not strict: a micro-batch that only keeps other ranks company comes from nowhere.
        for (group, completion), part in zip(batch.origin, np.split(of_batch, ends), strict=False):
            found[group][completion] = part
    return found


def _split(index: int, group: TrainGroup, shape: Shape) -> list[_Piece]:
    if not group.completions:
        return []
    lengths = [len(c.token_ids) for c in group.completions]
    branches = branches_per_row(len(group.prompt_ids), lengths, shape)
    return [
        _Piece(group.prompt_ids, group.completions[start : start + branches], group.weight, index, start)
        for start in range(0, len(lengths), branches)
    ]


def _layout(rows: Sequence[Sequence[_Piece]], length: int) -> MicroBatch:
    input_ids = np.zeros((len(rows), length), np.int64)
    position_ids = np.zeros((len(rows), length), np.int64)
    document = np.full((len(rows), length), -1, np.int64)
    branch = np.zeros((len(rows), length), np.int64)
    source: list[IntArray] = []
    target: list[IntArray] = []
    behaviour: list[FloatArray] = []
    proximal: list[DoubleArray] = []
    mark: list[IntArray] = []
    sample: list[IntArray] = []
    advantage: list[float] = []
    weight: list[float] = []
    origin: list[tuple[int, int]] = []
    for r, row in enumerate(rows):
        at = 0
        for d, piece in enumerate(row):
            prompt = len(piece.prompt_ids)
            span = slice(at, at + piece.length)
            document[r, span] = d
            input_ids[r, at : at + prompt] = piece.prompt_ids
            position_ids[r, at : at + prompt] = np.arange(prompt)
            last_of_prompt = r * length + at + prompt - 1
            at += prompt
            for b, completion in enumerate(piece.completions):
                fed = len(completion.token_ids) - 1
                input_ids[r, at : at + fed] = completion.token_ids[:-1]
                position_ids[r, at : at + fed] = prompt + np.arange(fed)
                branch[r, at : at + fed] = b + 1
                source.append(np.concatenate(([last_of_prompt], r * length + at + np.arange(fed))))
                target.append(completion.token_ids)
                behaviour.append(completion.behaviour)
                proximal.append(np.full(fed + 1, np.nan) if completion.proximal is None else completion.proximal)
                mark.append(np.zeros(fed + 1, np.int64) if completion.mark is None else completion.mark)
                sample.append(np.full(fed + 1, len(advantage)))
                advantage.append(completion.advantage)
                weight.append(piece.weight)
                origin.append((piece.group, piece.first + b))
                at += fed
    return MicroBatch(
        input_ids,
        position_ids,
        document,
        branch,
        np.concatenate(source).astype(np.int64),
        np.concatenate(target).astype(np.int64),
        np.concatenate(behaviour).astype(np.float32),
        np.concatenate(proximal),
        np.concatenate(mark),
        np.concatenate(sample).astype(np.int64),
        np.asarray(advantage, np.float64),
        np.asarray(weight, np.float64),
        np.asarray(origin, np.int64),
    )
