"""`exact`: the completion is the answer, but for white space around it."""

from store.wire import Json


def check_answer(answer: Json) -> None:
    """ValueError unless the answer is a text or an integer."""
    if isinstance(answer, bool) or not isinstance(answer, str | int):
        raise ValueError(f"answer is {answer!r}, but the verifier exact needs a text or an integer")


def verify(answer: Json, text: str) -> bool:
    """Whether `text` is the answer."""
    return text.strip() == str(answer).strip()
