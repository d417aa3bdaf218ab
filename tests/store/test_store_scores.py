"""What evaluations say, against numbers that were worked out by hand."""

import math

import pytest

from store.evaluations import Round, Tally
from store.scores import of_round, scores


def tally(name: str, correct: int, n: int = 8, errors: int = 0) -> Tally:
    return Tally(name, n, correct, min(correct, 2), 1, errors, 5 * n, 2.5 * n)


def test_scores_have_the_unbiased_estimator_and_what_the_completions_were_like() -> None:
    said = scores([tally("a", 4), tally("b", 0, errors=2)], [1, 2, 9])
    # pass@1: 4/8 and 0. pass@2: 1 − (4·3)/(8·7) = 11/14 and 0. The error of two values x, 0 is x/2. 9 > 8 completions.
    assert [row["k"] for row in said["pass_at_k"]] == [1, 2]
    values = [row[name] for row in said["pass_at_k"] for name in ("mean", "se")]
    assert values == pytest.approx([0.25, 0.25, 11 / 28, 11 / 28])
    assert (said["solved"], said["mean_tokens"], said["entropy"], said["distinct_right_answers"]) == (1, 5.0, 0.5, 1.0)
    assert (said["error_share"], said["truncated_share"]) == pytest.approx((2 / 18, 2 / 16))


def test_a_problem_that_no_completion_was_judged_of_leaves_no_pass_at_k_and_no_division_by_zero() -> None:
    said = scores([tally("a", 4), Tally("b", 0, 0, 0, 0, 8, 0, 0.0)], [1])
    assert said["pass_at_k"] == []
    assert said["error_share"] == 0.5
    nothing = scores([Tally("b", 0, 0, 0, 0, 8, 0, 0.0)], [1])
    assert (nothing["entropy"], nothing["mean_tokens"], nothing["error_share"]) == (0.0, 0.0, 1.0)


def test_a_round_is_held_against_the_first_problem_by_problem() -> None:
    first = Round(0, 0, "x", 1.0, 2.0, 8, (tally("a", 4), tally("b", 0), tally("c", 2)))
    later = Round(5, 4, "y", 3.0, 5.0, 8, (tally("a", 0), tally("b", 2), tally("c", 8), tally("new", 8)))
    zero, five = (of_round(one, first, [1, 8]) for one in (first, later))
    assert (zero["version"], zero["newly_solved"], zero["newly_lost"]) == (0, 0, 0)
    assert zero["gains"][0] == pytest.approx({"k": 1, "before": 0.25, "after": 0.25, "gain": 0.0, "se": 0.0})
    assert (five["version"], five["step"], five["actor"], five["problems"], five["samples"]) == (5, 4, "y", 4, 8)
    assert (five["newly_solved"], five["newly_lost"]) == (1, 1)
    # Of the three problems that both have: −1/2, 1/4 and 3/4.
    spread = math.sqrt(sum((x - 1 / 6) ** 2 for x in (-0.5, 0.25, 0.75)) / 2 / 3)
    assert five["gains"][0] == pytest.approx({"k": 1, "before": 0.25, "after": 5 / 12, "gain": 1 / 6, "se": spread})
    assert five["pass_at_k"][0]["mean"] == pytest.approx((0 + 0.25 + 1 + 1) / 4)
