"""Packing: what a micro-batch holds, that it never leaks between answers, and that it costs least."""

import numpy as np
import pytest

from learner.batches import Shape, TrainCompletion, TrainGroup, balance, branches_per_row, pack, unpack
from tests.learner.scripted import random_groups

CHEAP_ATTENTION = Shape(1.0, 0.0)


def group(prompt: list[int], *completions: list[int]) -> TrainGroup:
    made = tuple(
        TrainCompletion(np.array(ids), np.zeros(len(ids), np.float32), float(i + 1))
        for i, ids in enumerate(completions)
    )
    return TrainGroup("g", np.array(prompt), made, 0.5, len(made), sum(map(len, completions)))


def test_a_row_holds_the_prompt_once_and_every_completion_without_its_last_token() -> None:
    (batch,) = pack([group([7, 8, 9], [1, 2, 3], [4], [5, 6])], CHEAP_ATTENTION, 100)
    assert batch.input_ids.tolist() == [[7, 8, 9, 1, 2, 5]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 3]]
    assert batch.branch.tolist() == [[0, 0, 0, 1, 1, 3]]
    assert batch.source.tolist() == [2, 3, 4, 2, 2, 5]
    assert batch.target.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.sample.tolist() == [0, 0, 0, 1, 2, 2]
    assert batch.advantage.tolist() == [1, 2, 3]
    assert batch.weight.tolist() == [0.5] * 3


def test_a_completion_sees_its_prompt_and_itself_and_nothing_else() -> None:
    batch, *_ = pack([group([7, 8], [1, 2, 3], [4, 5, 6]), group([9], [1, 2])], CHEAP_ATTENTION, 100)
    assert batch.document.tolist() == [[0, 0, 0, 0, 0, 0]]
    expected = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 1],
    ]
    assert batch.mask().astype(int).tolist() == [expected]


def test_a_short_group_fills_the_padding_of_a_row_and_is_not_seen_by_its_neighbour() -> None:
    long, middle, short = group([1] * 6, [2, 3, 4]), group([5] * 4, [6, 7]), group([8, 8], [9, 9])
    (batch,) = pack([long, middle, short], CHEAP_ATTENTION, 100)
    assert batch.input_ids.shape == (2, 8)
    assert batch.document[1].tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert not batch.mask()[1, 5:, :5].any()


def test_padding_attends_to_itself_alone() -> None:
    (batch,) = pack([group([1] * 6, [2, 3, 4]), group([5] * 4, [6, 7])], CHEAP_ATTENTION, 100)
    assert batch.document[1].tolist()[5:] == [-1, -1, -1]
    assert batch.mask()[1, 7].nonzero()[0].tolist() in ([7], [5, 6, 7])
    assert batch.mask().any(-1).all()


@pytest.mark.parametrize("budget", [1, 20, 64, 10_000])
def test_every_token_is_trained_once_at_any_budget(budget: int) -> None:
    groups = random_groups(9)
    batches = pack(groups, Shape.of(10_000, 2, 32), budget)
    tokens = sorted(int(t) for batch in batches for t in batch.target)
    assert tokens == sorted(int(t) for g in groups for c in g.completions for t in c.token_ids)
    assert all(b.input_ids.size <= max(budget, b.input_ids.shape[1]) for b in batches)


@pytest.mark.parametrize("shape", [CHEAP_ATTENTION, Shape(1e-9, 1.0)], ids=["shared prompt", "one row each"])
def test_values_of_packed_tokens_come_back_by_group_and_completion(shape: Shape) -> None:
    groups = random_groups(7)
    batches = pack(groups, shape, 40)
    found = unpack(groups, batches, [batch.target.astype(float) for batch in batches])
    assert [[ids.tolist() for ids in of_group] for of_group in found] == [
        [c.token_ids.tolist() for c in g.completions] for g in groups
    ]


def test_the_prompt_is_shared_until_attention_costs_more_than_it_saves() -> None:
    llama_135m = Shape.of(106_000_000, 30, 576)
    assert branches_per_row(50, [24] * 8, llama_135m) == 8
    assert branches_per_row(8, [8] * 8, Shape.of(332_000, 3, 96)) == 8
    assert branches_per_row(8, [1024] * 8, Shape.of(332_000, 3, 96)) == 1


def test_a_group_without_completions_gives_no_batch() -> None:
    assert pack([TrainGroup("g", np.array([1]), (), 1.0, 8, 40)], CHEAP_ATTENTION, 100) == []


def test_ranks_are_balanced_by_tokens_and_each_group_goes_to_one() -> None:
    tokens = [100, 90, 50, 40, 30, 20, 10]
    shares = balance(tokens, 2)
    assert sorted(i for share in shares for i in share) == list(range(7))
    assert [sum(tokens[i] for i in share) for share in shares] == [170, 170]
    assert balance([5], 3) == [[0], [], []]


def test_every_mini_batch_is_balanced_by_itself() -> None:
    # Indices 0, 2, 4 are one mini-batch and 1, 3, 5 the other; the longest of each is on a rank of its own.
    shares = balance([90, 10, 40, 20, 50, 30], 2, mini_batches=2)
    assert shares == [[0, 5], [1, 2, 3, 4]]
