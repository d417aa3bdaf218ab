"""The verifiers that run in the actor: what they accept, and what they do not."""

import time

import pytest

from actors.verifiers import exact, number
from actors.verifiers.registry import BUILT_IN, PythonFunction, make_verifier
from store.errors import VergeError


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("42", 42), (" 42\n", 42), ("The answer is 42.", 42),
        ("3 + 4 = 7", 7), ("3+4=7", 7), ("**7**", 7), ("$1,250.50.", "1250.5"),
        ("-3", -3), ("it is -3", -3), ("first 4, then 5", 5), ("7.0", 7), ("007", 7), ("1,250", 1250), ("+5", 5),
        ("4 or 5?\n#### 9", 9), ("#### 3\nno: #### 4", 4), ("#### $12.\nbye 7", 12), (r"so \boxed{8} and 9", 8),
        (r"\boxed{1} \boxed{2}", 2), (r"\(7\)", 7), ("(7)", 7), ("answer: 12, I think", 12), ("5 €", 5),
    ],
)  # fmt: skip
def test_number_finds_the_final_number(text: str, answer: object) -> None:
    assert number.verify(answer, text)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", 7), ("seven", 7), ("7 or 8", 7), ("x7", 7), ("7kg", 7),
        ("1/7", 7), ("7e1", 7), ("3:07", 7), ("7 and 12kg", 7), ("10-3", 3),
        ("7, 1,2", 2), ("#### 7 apples", 7), ("7\n#### ", 7),
        (r"\boxed{7 apples}", 7), (r"7 \boxed{}", 7), ("٧", 7), ("--7", 7), ("7_", 7),
        ("#### 7 #### 8", 7), ("1" * 200, int("1" * 200)), ("70", 7), ("0.7", 7),
    ],
)  # fmt: skip
def test_number_takes_nothing_else_for_it(text: str, answer: object) -> None:
    assert not number.verify(answer, text)


def test_number_is_quick_on_a_long_text() -> None:
    started = time.perf_counter()
    assert not number.verify(7, "a" * 200_000)
    assert not number.verify(7, "7," * 100_000)
    assert not number.verify(7, "\\boxed{" * 30_000)
    assert time.perf_counter() - started < 2


def test_exact_compares_all_but_the_white_space_around() -> None:
    assert exact.verify("yes", " yes\n")
    assert exact.verify(12, "12")
    assert not exact.verify("yes", "Yes")
    assert not exact.verify("a b", "a  b")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("exact", None), ("exact", 1.5), ("exact", True), ("number", "seven"), ("number", None), ("number", True),
        ("countdown", "1234=5"), ("countdown", {"digits": "1203", "target": 5}),
        ("countdown", {"digits": "123", "target": "5"}),
        ("countdown", {"digits": "", "target": 5}), ("countdown", {"digits": "12", "target": 5, "x": 1}),
    ],
)  # fmt: skip
def test_an_answer_that_the_verifier_cannot_use_is_refused(name: str, answer: object) -> None:
    with pytest.raises(ValueError, match=f"the verifier {name} needs"):
        BUILT_IN[name].check_answer(answer)


def test_a_verifier_is_found_by_its_name() -> None:
    assert make_verifier("number").name == "number"
    assert make_verifier("python:my_checks.maths:solved") == PythonFunction("my_checks.maths", "solved")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nubmer", "did you mean number"),
        ("sympy", "known: exact, number, countdown, math, code, reasoning_gym:dataset, python:"),
        ("python:os", "write python:module:function"),
        ("python:os:", "write python:"), ("python:a b:c", "write python:"),
        ("python:a:b:c", "write python:"), ("number:3", "unknown verifier"),
    ],
)  # fmt: skip
def test_an_unknown_verifier_is_refused_with_a_way_out(spec: str, message: str) -> None:
    with pytest.raises(VergeError, match=message):
        make_verifier(spec)
