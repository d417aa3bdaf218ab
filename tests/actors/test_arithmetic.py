"""Arithmetic sums and their stories."""

import re

import numpy as np
import pytest

from actors.families import arithmetic
from actors.families.arithmetic import Sum


def test_a_sum_has_the_value_that_usual_precedence_gives() -> None:
    # By hand.
    assert Sum((7, 4, 5), "*+", ()).value == 33
    assert Sum((20, 4, 5, 1), "--+", ()).value == 12
    assert Sum((7, 4, 5), "*+", ()).text == "7*4+5"


def test_problems_have_whole_answers_and_all_levels() -> None:
    problems = arithmetic.problems("train", 1000, 0)
    assert {problem.tags for problem in problems} == {("arithmetic", f"level-{level}") for level in (1, 2, 3)}
    assert all(isinstance(problem.answer, int) and problem.answer >= 0 for problem in problems)
    assert len({problem.id for problem in problems}) == 1000


def test_the_story_names_the_numbers_of_the_sum_in_order() -> None:
    for problem in arithmetic.problems("train", 500, 0):
        story = problem.prompt[-1]["content"]
        assert re.findall(r"\d+", story) == re.findall(r"\d+", problem.id)


def test_train_and_held_out_never_meet_and_no_demonstration_meets_either() -> None:
    train, held_out = arithmetic.problems("train", 3000, 5), arithmetic.problems("held_out", 1000, 5)
    reserved = {problem.id.removeprefix("arithmetic-") for problem in [*train, *held_out]}
    assert len(reserved) == arithmetic.RESERVE
    shown = arithmetic.demonstrations(np.random.default_rng(0), 5000)
    assert not reserved & {prompt.removesuffix("=") for prompt, _ in shown}
    operations = [len(re.findall(r"[-+*]", prompt)) for prompt, _ in shown]
    assert np.bincount(operations)[1:] / 5000 == pytest.approx(arithmetic.LEVEL_SHARES, abs=0.05)


def test_the_terse_form_is_the_same_sum_with_an_exact_answer() -> None:
    chat, terse = arithmetic.problems("train", 50, 0), arithmetic.problems("train", 50, 0, chat=False)
    for story, bare in zip(chat, terse, strict=True):
        assert bare.id == story.id
        assert bare.prompt == bare.id.removeprefix("arithmetic-") + "="
        assert bare.answer == str(story.answer)
        assert set(bare.prompt + bare.answer) <= set(arithmetic.ALPHABET)


def test_seven_of_ten_demonstrations_are_right() -> None:
    shown = arithmetic.demonstrations(np.random.default_rng(2), 5000)
    right = [eval(prompt[:-1]) == int(answer) for prompt, answer in shown]  # texts of our own making
    assert abs(np.mean(right) - 0.7) < 0.03
