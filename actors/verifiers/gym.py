"""`reasoning_gym:<dataset>`: the answer gets full marks from the dataset that made the problem.

What runs in the actor; `gym_worker` is what scores. A problem's answer is the entry as `pack` makes it: datasets put
tuples, and dicts with other keys than texts, into their entries, and mean them.
"""

from typing import Any

from store.wire import Json

TRIAL = (None, "")
"""Only that the dataset is there."""
_PACKED = ("tuple", "dict")


def check_answer(answer: Json) -> None:
    """ValueError unless the answer is an entry's."""
    match answer:
        case {"question": str(), "answer": _, "metadata": {}}:
            return
    raise ValueError(
        f"answer is {str(answer)[:40]!r}, but a reasoning_gym verifier needs its whole entry; "
        'set problems.source = "reasoning_gym:<dataset>" and Verge makes the problems'
    )


def pack(value: Any) -> Json:
    """JSON from which `unpack` makes the same value again.

    Raises:
        TypeError: it holds something that is neither JSON nor a tuple.
    """
    match value:
        case tuple():
            return {"tuple": [pack(item) for item in value]}
        case list():
            return [pack(item) for item in value]
        case dict():
            if all(isinstance(key, str) and key not in _PACKED for key in value):
                return {key: pack(item) for key, item in value.items()}
            return {"dict": [[pack(key), pack(item)] for key, item in value.items()]}
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"{type(value).__name__} is not JSON")


def unpack(value: Json) -> Any:
    """The value that was packed."""
    match value:
        case {"tuple": [*items], **rest} if not rest:
            return tuple(unpack(item) for item in items)
        case {"dict": [*items], **rest} if not rest:
            return {unpack(key): unpack(item) for key, item in items}
        case dict():
            return {key: unpack(item) for key, item in value.items()}
        case list():
            return [unpack(item) for item in value]
    return value
