"""The sampler in this process: what an actor's engine does, for plain prompts of one length and a tiny model.

Its weights are exactly `lag` versions old, which no fleet of actors would be.
"""

import copy
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actors.verifiers import countdown
from store.wire import Completion, Problem, RolloutGroup, Span, Ticket, Verdict


@dataclass(frozen=True, slots=True)
class Sampled:
    """N completions of up to T tokens. tokens: int32[N, T]; logprobs: float32[N, T], log μ; length: int64[N], the end
    token included; ended: bool[N]; entropy: mean nats of the distributions that the tokens were drawn from."""

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    length: NDArray[np.int64]
    ended: NDArray[np.bool_]
    entropy: float


@torch.inference_mode()
def sample(
    model: Any, prompts: NDArray[np.int64], each: int, longest: int, end: int, random: torch.Generator
) -> Sampled:
    """`each` completions of every prompt, at temperature 1.

    Args:
        prompts: int64[P, L], all of one length; the completions of a prompt are neighbours in what is returned.
        longest: T, tokens of a completion. end: the token that ends one.
    """
    answer = model(input_ids=torch.from_numpy(prompts), use_cache=True, logits_to_keep=1)
    cache, logits = answer.past_key_values, answer.logits[:, -1].repeat_interleave(each, 0)
    cache.batch_repeat_interleave(each)
    tokens, chosen, entropies = [], [], []
    for place in range(longest):
        logprobs = logits.log_softmax(-1)
        probabilities = logprobs.exp()
        token = torch.multinomial(probabilities, 1, generator=random)
        tokens.append(token)
        chosen.append(logprobs.gather(-1, token))
        entropies.append(-(probabilities * logprobs).sum(-1, keepdim=True))
        if place + 1 < longest:
            answer = model(input_ids=token, past_key_values=cache, use_cache=True)
            cache, logits = answer.past_key_values, answer.logits[:, -1]
    written = torch.cat(tokens, 1).numpy()
    is_end = written == end
    ended = is_end.any(axis=1)
    length = np.where(ended, is_end.argmax(axis=1) + 1, longest)
    counted = np.arange(longest) < length[:, None]
    entropy = float(torch.cat(entropies, 1).numpy()[counted].mean())
    return Sampled(written.astype(np.int32), torch.cat(chosen, 1).numpy(), length, ended, entropy)


class Sampler:
    """Verified rollout groups, by the weights of `lag` versions ago."""

    def __init__(self, model: Any, tokenizer: Any, lag: int, size: int, longest: int, seed: int) -> None:
        """`size`: completions of a group."""
        self._model, self._tokenizer = copy.deepcopy(model), tokenizer
        self._size, self._longest = size, longest
        self._texts = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        self._waiting: deque[list[torch.Tensor]] = deque(maxlen=lag + 1)
        self._random = torch.Generator().manual_seed(seed)
        self._prompts: dict[str, NDArray[np.int64]] = {}
        self._verified: dict[tuple[str, str], bool] = {}
        self.version = 0
        self.offer(0, model)

    def offer(self, version: int, model: Any) -> None:
        """Newest weights, of `version`; those that have now waited long enough are loaded."""
        self._waiting.append([parameter.detach().clone() for parameter in model.parameters()])
        with torch.no_grad():
            for own, waited in zip(self._model.parameters(), self._waiting[0], strict=True):
                own.copy_(waited)
        self.version = version + 1 - len(self._waiting)

    def roll_out(self, tickets: Sequence[tuple[Ticket, Problem]]) -> list[RolloutGroup]:
        """One group for each ticket."""
        prompts = np.stack([self._prompt(problem) for _, problem in tickets])
        end = self._tokenizer.eos_token_id
        sampled = sample(self._model, prompts, self._size, self._longest, end, self._random)
        groups = []
        for place, (ticket, problem) in enumerate(tickets):
            rows = range(place * self._size, (place + 1) * self._size)
            completions = tuple(self._completion(problem, sampled, row) for row in rows)
            groups.append(RolloutGroup(ticket.id, problem.id, prompts[place].astype(np.int32), completions))
        return groups

    def _prompt(self, problem: Problem) -> NDArray[np.int64]:
        if problem.id not in self._prompts:
            self._prompts[problem.id] = np.array(self._tokenizer(problem.prompt).input_ids)
        return self._prompts[problem.id]

    def _completion(self, problem: Problem, sampled: Sampled, row: int) -> Completion:
        length, ended = int(sampled.length[row]), bool(sampled.ended[row])
        tokens = sampled.tokens[row, :length]
        # One token is one character, so the text needs no decoder.
        text = "".join([self._texts[token] for token in tokens[:-1].tolist()])
        right = ended and self._right(problem, text)
        return Completion(
            tokens,
            sampled.logprobs[row, :length],
            (Span(self.version, 0, length),),
            float(right),
            Verdict.CORRECT if right else Verdict.WRONG if ended else Verdict.TRUNCATED,
            "stop" if ended else "length",
        )

    def _right(self, problem: Problem, text: str) -> bool:
        """The verifier's word, asked once for every text: a model repeats itself."""
        if (problem.id, text) not in self._verified:
            self._verified[problem.id, text] = countdown.verify(problem.answer, text)
        return self._verified[problem.id, text]
