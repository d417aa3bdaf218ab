"""The countdown rules: read an answer, value it, say whether it solves the problem. Nothing is ever evaluated."""

from collections import Counter

from store.wire import Json

DIGITS = "123456789"
OPERATORS = "+-*"


class NotAnAnswer(ValueError):
    """The text is not an expression of this game."""


def parse(text: str) -> tuple[list[int], list[str]]:
    """Read `d op d op d …` into its digits and its operators; spaces between them are allowed.

    An expression is single digits 1–9 joined by `+`, `-` or `*`: no sign, no brackets, no number of two digits.

    Raises:
        NotAnAnswer: the text is anything else.
    """
    symbols = [symbol for symbol in text if symbol not in " \t\r\n"]
    if len(symbols) % 2 == 0:
        raise NotAnAnswer(f"{text!r} does not alternate digits and operators")
    digits, operators = symbols[0::2], symbols[1::2]
    if any(digit not in DIGITS for digit in digits):
        raise NotAnAnswer(f"{text!r} has something other than a digit 1–9 where a digit must be")
    if any(operator not in OPERATORS for operator in operators):
        raise NotAnAnswer(f"{text!r} has something other than + - * between two digits")
    return [int(digit) for digit in digits], operators


def value(digits: list[int], operators: list[str]) -> int:
    """The expression's value, `*` before `+` and `-`, left to right."""
    total, sign, product = 0, 1, digits[0]
    for operator, digit in zip(operators, digits[1:], strict=True):
        if operator == "*":
            product *= digit
        else:
            total, sign, product = total + sign * product, 1 if operator == "+" else -1, digit
    return total + sign * product


def solves(text: str, given: str, target: int) -> bool:
    """Whether `text` is an expression over the `given` digits, each used at most as often as given, worth `target`."""
    try:
        digits, operators = parse(text)
    except NotAnAnswer:
        return False
    if Counter(str(digit) for digit in digits) - Counter(given):
        return False
    return value(digits, operators) == target


def check_answer(answer: Json) -> None:
    """ValueError unless the answer is {"digits": "abcd", "target": n}."""
    match answer:
        case {"digits": str(digits), "target": int(), **rest} if digits and set(digits) <= set(DIGITS) and not rest:
            return
    raise ValueError(
        f'answer is {answer!r}, but the verifier countdown needs {{"digits": "1234", "target": 24}} with digits 1 to 9'
    )


def verify(answer: Json, text: str) -> bool:
    """Whether `text` solves the problem whose parameters are `answer`."""
    return solves(text, answer["digits"], answer["target"])
