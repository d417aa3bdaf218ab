"""The part of `math` that runs in a worker process: Math-Verify, without its time-outs.

Those use SIGALRM, and what they interrupt they count as wrong; here the pool kills a comparison that hangs.
"""

import functools
from typing import Any

try:
    import math_verify
except ImportError as error:
    raise ImportError(f"{error}; pip install 'verge-rl[verify]'") from None


def verify(problem: dict[str, Any], completion: str) -> bool:
    r"""Whether the final answer of `completion` (the last \boxed{…}, else the last formula or number) is the reference.

    Raises:
        ValueError: the reference cannot be read.
        Exception: whatever Math-Verify raises when it cannot compare the two, which does not make the answer wrong.
    """
    reference = _reference(str(problem["answer"]))
    found = math_verify.parse(completion, parsing_timeout=None, raise_on_error=True)
    return bool(math_verify.verify(reference, found, timeout_seconds=None, raise_on_error=True))


@functools.lru_cache(4096)
def _reference(answer: str) -> Any:
    """The parsed reference: what follows `####` as in GSM8K; as LaTeX, where it is not marked as such."""
    answer = answer.rpartition("####")[2].strip()
    text = answer if "$" in answer or r"\boxed" in answer else f"${answer}$"
    if parsed := math_verify.parse(text, parsing_timeout=None, raise_on_error=True):
        return parsed
    raise ValueError(f"Math-Verify cannot read the reference answer {answer!r}")
