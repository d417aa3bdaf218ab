"""`math`: the completion's final answer is mathematically equal to the reference, as Math-Verify sees it.

What runs in the actor; `math_worker` is what compares.
"""

from store.wire import Json

TRIAL = (r"\frac{1}{2}", r"So it is \boxed{0.5}.")
"""An answer, and a completion that is correct for it."""


def check_answer(answer: Json) -> None:
    """ValueError unless the answer is a number or a text."""
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise ValueError(
            rf'answer is {answer!r}, but the verifier math needs a number or LaTeX such as "\\frac{{1}}{{2}}"'
        )
