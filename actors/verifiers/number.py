r"""`number`: the completion's final number is the answer.

Where the final number is, in this order:

1. after the last `####`, to the end of that line;
2. else in the last `\boxed{…}`;
3. else the last number in the text.

In 1 and 2 the place must hold one number and nothing else but white space, a `$` around it or `. , :` after it. A
number is digits with an optional sign, commas between groups of three, and an optional decimal part: `42`, `-3.50`,
`1,250`. A number glued to letters or to another number (`x2`, `12kg`, `1/2`, `1e5`, `3:15`) is none, and when that is
the last thing with a digit in it there is no final number: nothing before it is searched. What may touch a number is
`$ * ( ) [ ] = " ' ` ~ < > ? ! ; |`, so `3+4=7` and `**7**` end in 7. Numbers are compared as decimals,
so 7, 7.0 and 007 are the same.
"""

import re
from decimal import Decimal

from store.wire import Json

_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")
_BETWEEN = re.compile(r"(?:[\s$*()\[\]=\"'`~<>?!;|]|\\(?=[()\[\]]))+")
_DIGIT = re.compile(r"[0-9]")
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")
MAX_CHARACTERS = 100
"""Of a number. Anything longer is not an answer."""


def check_answer(answer: Json) -> None:
    """ValueError unless the answer is a number, or a text that is one."""
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or read_number(str(answer)) is None:
        raise ValueError(f'answer is {answer!r}, but the verifier number needs a number such as 42 or "1,250.5"')


def verify(answer: Json, text: str) -> bool:
    """Whether the final number of `text` equals the answer."""
    found = final_number(text)
    return found is not None and found == read_number(str(answer))


def final_number(text: str) -> Decimal | None:
    """The number that the text ends in by the rules above; None when there is none."""
    if "####" in text:
        return read_number(text.rpartition("####")[2].lstrip(" \t").split("\n", 1)[0])
    if boxed := _BOXED.findall(text):
        return read_number(boxed[-1])
    last = next((piece for piece in reversed(_BETWEEN.split(text)) if _DIGIT.search(piece)), "")
    return read_number(last)


def read_number(text: str) -> Decimal | None:
    """The number that `text` is, but for a `$` before it and a mark after it; None when it is not a number."""
    bare = text.strip().removeprefix("$").rstrip("$.,: ")
    if len(bare) > MAX_CHARACTERS or not _NUMBER.fullmatch(bare):
        return None
    return Decimal(bare.replace(",", ""))
