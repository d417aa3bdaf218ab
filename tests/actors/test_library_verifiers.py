"""The verifiers `math` and `reasoning_gym:…`, which libraries judge in worker processes."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from reasoning_gym.factory import DATASETS, create_dataset

from actors.config import ProblemsConfig, VerifierConfig
from actors.problems import load_problems
from actors.verifiers import Verifiers, gym, gym_worker
from store.errors import VergeError
from store.wire import Problem, Verdict

Told = tuple[Verdict, str]


def judge(*checks: tuple[Problem, str], limit_s: float = 60.0) -> list[Told]:
    """Verdict, and last error, of each completion in turn, by one worker."""
    verifiers = Verifiers(VerifierConfig(workers=1, time_limit_s=limit_s, import_limit_s=120))

    async def run() -> list[Told]:
        told = []
        try:
            for problem, text in checks:
                verifiers.last_error = ""
                told.append(((await verifiers.verify(problem, text, "stop"))[1], verifiers.last_error))
        finally:
            verifiers.close()
        return told

    return asyncio.run(run())


def math(answer: Any) -> Problem:
    return Problem("m", "?", "math", answer)


EQUAL = [
    (r"\frac{1}{2}", r"So it is \boxed{0.5}."), ("1/2", r"\boxed{\frac{2}{4}}"), (42, "The answer is 42."),
    (r"\sqrt{2}", r"\boxed{2^{1/2}}"), ("x^2+1", r"$1 + x^2$"), ("(1,2)", r"\boxed{(1, 2)}"),
    ("3,000", r"\boxed{3000}"), ("I add 1 and 1.\n#### 2", r"\boxed{2}"),
    (r"The result is \boxed{7}", "7"), (r"\{1,2\}", r"\boxed{\{2, 1\}}"), ("x=3", r"\boxed{3}"), (0.75, "$3/4$"),
]  # fmt: skip
UNEQUAL = [
    ("5", r"\boxed{6} or 5"), ("5", ""), ("5", "I do not know"), ("5", r"\boxed{\frac{}{}"), ("x", r"\boxed{y}"),
    ("5", r"\boxed{5.1}"), ("5", r"\begin{matrix} \\ & \\ \boxed{\left[ }"),
]  # fmt: skip


def test_math_compares_what_is_meant_and_survives_what_hangs() -> None:
    hang = ("5", r"\boxed{9!!!!!!!}")
    found = judge(*((math(answer), text) for answer, text in (*EQUAL, *UNEQUAL)))
    for (answer, text), told in zip(EQUAL + UNEQUAL, found, strict=True):
        assert told == (Verdict.CORRECT if (answer, text) in EQUAL else Verdict.WRONG, ""), (answer, text)
    after = judge((math(hang[0]), hang[1]), (math(5), r"\boxed{5}"), limit_s=2.0)
    assert [verdict for verdict, _ in after] == [Verdict.TIMEOUT, Verdict.CORRECT]


def test_a_reference_that_math_cannot_read_is_an_error() -> None:
    ((verdict, why),) = judge((math("$$"), r"\boxed{5}"))
    assert verdict is Verdict.ERROR
    assert "cannot read the reference answer '$$'" in why


def test_reasoning_gym_gives_problems_and_judges_them() -> None:
    config = ProblemsConfig(source="reasoning_gym:leg_counting", train_count=6, held_out_count=3, form="plain")
    found = load_problems(config)
    assert found == load_problems(config)
    assert found != load_problems(config.model_copy(update={"seed": 1}))
    every = [*found.train, *found.held_out]
    assert len({problem.id for problem in every}) == len({problem.prompt for problem in every}) == 9
    one = found.train[0]
    right = json.loads(json.dumps(one.answer))["answer"]
    told = judge((one, f"Let me count. <answer> {right} </answer>"), (one, right), (one, "<answer>-1</answer>"))
    assert [verdict for verdict, _ in told] == [Verdict.CORRECT, Verdict.CORRECT, Verdict.WRONG]
    longer = load_problems(config.model_copy(update={"train_count": 8}))
    assert longer.train[:6] == found.train
    assert longer.held_out == found.held_out


def test_an_answer_that_a_dataset_cannot_read_is_wrong_and_an_entry_that_it_cannot_read_is_an_error() -> None:
    (problem,) = load_problems(
        ProblemsConfig(source="reasoning_gym:prime_factorization", train_count=1, held_out_count=0)
    ).train
    broken = Problem("b", "?", problem.verifier, {"question": "?", "answer": "?", "metadata": {}})
    told = judge((problem, "<answer>two times three</answer>"), (broken, "<answer>2</answer>"))
    assert [verdict for verdict, _ in told] == [Verdict.WRONG, Verdict.ERROR]
    assert "ValueError: invalid literal for int() with base 10: '?'" in told[1][1]


@pytest.mark.parametrize("name", ["rearc", "leg_counting", "countdown", "sudoku", "word_ladder", "knights_knaves"])
def test_an_entry_means_the_same_after_the_store(name: str) -> None:
    entry = create_dataset(name, size=1, seed=7)[0]
    assert gym.unpack(json.loads(json.dumps(gym.pack(entry)))) == entry
    problem = {"verifier": f"reasoning_gym:{name}", "answer": json.loads(json.dumps(gym.pack(entry)))}
    assert gym_worker.verify(problem, str(entry["answer"]))
    assert not gym_worker.verify(problem, "<answer></answer>")


def test_packing_keeps_tuples_and_keys_and_refuses_the_rest() -> None:
    odd = {"tuple": (1, [2, ()]), "dict": {3: None, (4, 5): "x"}, "plain": {"a": 1.5}}
    assert gym.unpack(json.loads(json.dumps(gym.pack(odd)))) == odd
    with pytest.raises(TypeError, match="set is not JSON"):
        gym.pack({"a": {1}})


def test_a_dataset_that_is_not_there_is_named_before_a_run() -> None:
    with pytest.raises(VergeError, match="no dataset 'leg_countin'; did you mean leg_counting"):
        load_problems(ProblemsConfig(source="reasoning_gym:leg_countin"))
    entry = {"question": "?", "answer": "1", "metadata": {}}
    missing = Problem("p9", "?", "reasoning_gym:no_such", entry)
    with pytest.raises(VergeError, match=r"verifier reasoning_gym:no_such of problem p9: .*no_such.* not registered"):
        Verifiers(VerifierConfig(import_limit_s=120)).check([missing])
    with pytest.raises(
        VergeError, match="problem p: answer is '5', but a reasoning_gym verifier needs its whole entry"
    ):
        Verifiers(VerifierConfig()).check([Problem("p", "?", "reasoning_gym:leg_counting", "5")])
    with pytest.raises(VergeError, match=r"has only .* different train problems"):
        load_problems(ProblemsConfig(source="reasoning_gym:tower_of_hanoi", train_count=400, held_out_count=0))


def test_every_dataset_has_a_name_that_a_verifier_can_have() -> None:
    assert all(name.isidentifier() for name in DATASETS)


def test_a_package_that_is_not_installed_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "math_verify.py").write_text("raise ModuleNotFoundError('No module named math_verify')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(VergeError, match=r"problem m: .*No module named math_verify; pip install 'verge-rl\[verify\]'"):
        Verifiers(VerifierConfig()).check([math(5)])
