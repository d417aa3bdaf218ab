"""From problems to prompt ids, once; what is sent to the engine is what is stored and trained on."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.errors import VergeError
from store.wire import Problem

KEPT_PROBLEMS = 4096
"""Problems whose text an actor keeps, encoded; another comes from the store again."""


class EncodedProblems:
    """Problems of a store with their prompt ids int32 [P], which are kept for a while."""

    def __init__(
        self,
        find: Callable[[str], Awaitable[Problem | None]],
        tokenizer: Any,
        context_tokens: int,
        max_completion_tokens: int,
    ) -> None:
        """`find`: a problem by its id, None where the store does not have it; the others as of `encode_prompts`."""
        self._find = find
        self._limits = (tokenizer, context_tokens, max_completion_tokens)
        self._kept: dict[str, tuple[Problem, NDArray[np.int32]]] = {}

    async def get(self, problem_id: str) -> tuple[Problem, NDArray[np.int32]]:
        """A problem and its prompt.

        Raises:
            VergeError: the store does not have it, or as `encode_prompts`.
        """
        if problem_id not in self._kept:
            problem = await self._find(problem_id)
            if problem is None:
                raise VergeError(f"problem {problem_id!r} is asked for, which the store does not have")
            prompts = encode_prompts([problem], *self._limits)
            if len(self._kept) >= KEPT_PROBLEMS:
                del self._kept[next(iter(self._kept))]
            self._kept[problem_id] = problem, prompts[problem_id]
        return self._kept[problem_id]


def encode_prompts(
    problems: Iterable[Problem], tokenizer: Any, context_tokens: int, max_completion_tokens: int
) -> dict[str, NDArray[np.int32]]:
    """Prompt ids int32 [P] by problem id. A problem's own `max_completion_tokens` takes the place of that given.

    Messages go through the model's chat template with its generation prompt, which adds every special token there is.
    Plain text is encoded with the special tokens that the tokenizer itself puts around a text (a BOS for many Llamas,
    none for others).

    Raises:
        VergeError: a chat for a model without a chat template, a prompt that the tokenizer cannot encode, an empty one,
            or one that does not fit the context with its completion; the problem is named.
    """
    return {
        problem.id: _checked(
            problem, _encode(problem, tokenizer), context_tokens, problem.max_completion_tokens or max_completion_tokens
        )
        for problem in problems
    }


def _encode(problem: Problem, tokenizer: Any) -> list[int]:
    if isinstance(problem.prompt, str):
        try:
            return list(tokenizer(problem.prompt).input_ids)
        except Exception as error:  # tokenizers raises bare Exception for a character that is not in its vocabulary
            raise VergeError(f"problem {problem.id}: the model's tokenizer cannot encode its prompt: {error}") from None
    if not tokenizer.chat_template:
        raise VergeError(
            f"problem {problem.id} is a chat, but the model's tokenizer has no chat template; give it plain prompts "
            "or use an instruction-tuned model"
        )
    try:
        ids = tokenizer.apply_chat_template(list(problem.prompt), add_generation_prompt=True, return_dict=False)
    except Exception as error:  # a template is a program: it raises what it likes, jinja2's errors mostly
        raise VergeError(f"problem {problem.id}: the model's chat template does not take it: {error}") from None
    return list(ids)


def _checked(problem: Problem, ids: list[int], context: int, completion: int) -> NDArray[np.int32]:
    if not ids:
        raise VergeError(f"problem {problem.id} has an empty prompt: the model needs a token to begin from")
    if len(ids) + completion > context:
        raise VergeError(
            f"problem {problem.id} does not fit: {len(ids)} prompt tokens + {_owner(problem)}max_completion_tokens = "
            f"{completion} make {len(ids) + completion}, but actor.context_tokens = {context}; "
            "raise it, shorten the prompt or lower max_completion_tokens"
        )
    return np.asarray(ids, dtype=np.int32)


def _owner(problem: Problem) -> str:
    return "sampling." if problem.max_completion_tokens is None else "its own "
