"""The tests of a code problem: their shapes, and whether what a program gave is what was expected."""

import json
import math
import re
from dataclasses import dataclass
from decimal import Decimal

from store.wire import Json

MAX_INPUT_BYTES = 32 << 20
RELATIVE = ABSOLUTE = 1e-6
"""How far a number may be from an expected one that is written with a decimal point or an exponent."""
SHAPES = (
    'the verifier code needs tests: {"tests": [{"input": "1 2\\n", "output": "3\\n"}, …]}, for a function also '
    '"function": "name" and each input a list of arguments, or {"inputs": […], "outputs": […], "fn_name": "name"}'
)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(\.[0-9]*)?|(\.[0-9]+))([eE][+-]?[0-9]{1,4})?")
_MAX_NUMBER = 400


@dataclass(frozen=True, slots=True)
class Case:
    """One test: the bytes that go into the sandbox, and what is expected, which does not."""

    given: bytes
    expected: Json


@dataclass(frozen=True, slots=True)
class Cases:
    """The tests of a problem; with a `function`, `given` is a JSON list of arguments and `expected` a JSON value.

    `wrapped`: an expected value may stand in a list of its own, as in APPS and TACO.
    """

    function: str | None
    cases: tuple[Case, ...]
    wrapped: bool = False

    def passes(self, case: Case, output: bytes) -> bool:
        """Whether `output` of the program is what the case expects."""
        if self.function is None:
            return same_text(case.expected, output.decode(errors="replace"))
        try:
            result = json.loads(output)
            return same_value(case.expected, result) or (
                self.wrapped
                and isinstance(case.expected, list)
                and len(case.expected) == 1
                and same_value(case.expected[0], result)
            )
        except (ValueError, RecursionError):  # whatever it wrote, it is not the JSON of an answer
            return False


def read_cases(answer: Json) -> Cases:
    """The tests that an answer holds, in the shape of LiveCodeBench (`tests`) or of APPS and TACO (`inputs`).

    An answer may be the JSON text of one, as those datasets have it.

    Raises:
        ValueError: it holds none, or one that cannot be used, which is named by its number.
    """
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
        except (ValueError, RecursionError):
            raise ValueError(f"answer is a text that is not JSON; {SHAPES}") from None
    match answer:
        case {"tests": [*tests], **rest} if tests and set(rest) <= {"function"}:
            function, wrapped = rest.get("function"), False
        case {"inputs": [*inputs], "outputs": [*outputs], **rest} if inputs and set(rest) <= {"fn_name"}:
            if len(inputs) != len(outputs):
                raise ValueError(f"answer has {len(inputs)} inputs but {len(outputs)} outputs; give each input its own")
            function, wrapped = rest.get("fn_name"), True
            tests = [{"input": one, "output": other} for one, other in zip(inputs, outputs, strict=True)]
        case _:
            raise ValueError(f"answer has no tests; {SHAPES}")
    if function is not None and not (isinstance(function, str) and function.isidentifier()):
        raise ValueError(f"function is {function!r}, but must be the name of a function")
    return Cases(function, tuple(_case(test, function, number) for number, test in enumerate(tests, 1)), wrapped)


def _case(test: Json, function: str | None, number: int) -> Case:
    match test:
        case {"input": given, "output": expected, **rest} if set(rest) <= {"testtype"}:
            pass
        case _:
            raise ValueError(f'test {number} of the answer is not {{"input": …, "output": …}}')
    text, expected = _of_stdin(given, expected, number) if function is None else _of_call(given, expected, number)
    if len(text) > MAX_INPUT_BYTES:
        raise ValueError(f"the input of test {number} has {len(text)} bytes, the limit is {MAX_INPUT_BYTES}")
    return Case(text, expected)


def _of_stdin(given: Json, expected: Json, number: int) -> tuple[bytes, str]:
    texts = []
    for name, value in (("input", given), ("output", expected)):
        if isinstance(value, list) and all(isinstance(line, str) for line in value):
            value = "\n".join(value)
        if not isinstance(value, str):
            raise ValueError(
                f"the {name} of test {number} is {str(value)[:40]!r}, but must be a text (or name the function to call)"
            )
        texts.append(value)
    return texts[0].encode(errors="replace"), texts[1]


def _of_call(given: Json, expected: Json, number: int) -> tuple[bytes, Json]:
    if isinstance(given, str):  # LiveCodeBench: one JSON value a line, and the output is JSON text too
        try:
            given = [json.loads(line) for line in given.split("\n") if line.strip()]
            expected = json.loads(expected) if isinstance(expected, str) else expected
        except (ValueError, RecursionError):
            raise ValueError(f"test {number} calls a function, but its input is not one JSON value a line") from None
    if not isinstance(given, list):
        raise ValueError(f"the input of test {number} is {str(given)[:40]!r}, but must be a list of arguments")
    return json.dumps(given).encode(), expected


def same_text(expected: str, output: str) -> bool:
    """Line by line and word by word; trailing empty lines and the amount of white space do not count."""
    wanted, got = (text.rstrip().splitlines() for text in (expected, output))
    return len(wanted) == len(got) and all(map(_same_line, wanted, got))


def same_value(expected: Json, result: Json) -> bool:
    """Equal, but for floats, which may be 1e-6 apart. A tuple has become a list on its way."""
    if isinstance(expected, list):
        return isinstance(result, list) and len(expected) == len(result) and all(map(same_value, expected, result))
    if isinstance(expected, dict):
        return (
            isinstance(result, dict)
            and expected.keys() == result.keys()
            and all(same_value(value, result[key]) for key, value in expected.items())
        )
    if isinstance(expected, float) and isinstance(result, int | float):
        return _close(expected, result)
    return bool(expected == result)


def _same_line(wanted: str, got: str) -> bool:
    if wanted == got:
        return True
    words, given = wanted.split(), got.split()
    return len(words) == len(given) and all(map(_same_word, words, given))


def _same_word(wanted: str, got: str) -> bool:
    if wanted == got:
        return True
    if max(len(wanted), len(got)) > _MAX_NUMBER:
        return False
    number, other = _NUMBER.fullmatch(wanted), _NUMBER.fullmatch(got)
    if not number or not other:
        return False
    if any(number.groups()):
        return _close(float(wanted), float(got))
    return Decimal(wanted) == Decimal(got)


def _close(wanted: float, got: float) -> bool:
    try:
        return math.isclose(wanted, got, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    except OverflowError:  # an integer beyond every float
        return False
