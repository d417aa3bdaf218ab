"""Advantages that read more than the group's count: training history, or how likely each completion was."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gating.checks import Array, counts, real, scalar, whole
from gating.classic import GRPO
from gating.registry import CountAdvantage, register


def binary_groups(rewards: npt.ArrayLike) -> Array:
    """[N, G] rewards, each 0 or 1."""
    r = real("rewards", rewards, 0, 1)
    if r.ndim != 2:
        raise ValueError(f"rewards has shape {r.shape} but must be [groups, completions]")
    if ((r != 0.0) & (r != 1.0)).any():
        raise ValueError(f"rewards holds {r[(r != 0) & (r != 1)].flat[0]:g} but each must be 0 or 1")
    return r


def _same_shape(name: str, value: npt.ArrayLike, shape: tuple[int, ...]) -> Array:
    array = real(name, value)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape} but must have that of rewards, {shape}")
    return array


@register
@dataclass(frozen=True, eq=False)
class HADW(CountAdvantage):
    """A = GRPO · λ·exp(−sgn(A)·(r̄ − anchor)): easier than history (r̄ > anchor) → less praise and more blame.

    `anchor` is the evolving difficulty belief C_t, kept by `DifficultyAnchor`.
    """

    anchor: float = 0.5
    scale: float = 1.3

    name: ClassVar[str] = "ha_dw"
    source: ClassVar[str] = "Yang et al., arXiv 2601.08521, eqs. 13–16"
    dynamic: ClassVar[frozenset[str]] = frozenset({"anchor"})

    def __post_init__(self) -> None:
        scalar("anchor", self.anchor, 0, 1)
        scalar("scale", self.scale, 0, above=True)

    @property
    def min_group(self) -> int:
        """As GRPO."""
        return 2

    def _success(self, c: Array, G: Array) -> Array:
        return GRPO().success(c, G) * self.scale * np.exp(self.anchor - c / G)

    def _failure(self, c: Array, G: Array) -> Array:
        return GRPO().failure(c, G) * self.scale * np.exp(c / G - self.anchor)


class DifficultyAnchor:
    """HA-DW's belief C_t ← (1 − ησ_t)·C + ησ_t·y_t, y_t a batch's mean reward, σ_t the spread of the last m beliefs.

    C starts at the first batch's mean; σ is 1 until two beliefs are known (arXiv 2601.08521, eqs. 8–11).
    """

    def __init__(self, rate: float = 0.1, window: int = 50) -> None:
        self.rate = scalar("rate", rate, 0, 1, above=True)
        self.window = int(whole("window", window, 2))
        self.beliefs: deque[float] = deque(maxlen=self.window)

    @property
    def value(self) -> float:
        """C_t, or 0.5 before the first batch."""
        return self.beliefs[-1] if self.beliefs else 0.5

    def update(self, mean_reward: float) -> float:
        """Take in one batch's mean reward; returns the new belief."""
        y = scalar("mean_reward", mean_reward, 0, 1)
        spread = float(np.std(self.beliefs)) if len(self.beliefs) > 1 else 1.0
        step = self.rate * spread
        self.beliefs.append((1.0 - step) * self.value + step * y if self.beliefs else y)
        return self.value

    def state_dict(self) -> dict[str, list[float]]:
        """The remembered beliefs."""
        return {"beliefs": list(self.beliefs)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`; refuses missing or unknown fields."""
        if set(state) != {"beliefs"}:
            raise ValueError(f"state has the fields {sorted(state)} but must have exactly ['beliefs']")
        self.beliefs = deque((scalar("beliefs", belief, 0, 1) for belief in state["beliefs"]), maxlen=self.window)


class LikelihoodAdvantage:
    """Base of the advantages that also read each completion's log-probability: `completions` instead of two counts.

    Counts alone do not determine them, so success and failure are refused rather than answered with something else.
    They do say whether a group can teach anything at all, which is what drawing needs.
    """

    name: ClassVar[str]
    source: ClassVar[str]

    def completions(self, rewards: npt.ArrayLike, logprobs: npt.ArrayLike) -> Array:
        """Advantage of every completion.

        Args:
            rewards: [N, G], 0 or 1.
            logprobs: [N, G], sequence log-probability of each completion, nats.
        """
        raise NotImplementedError

    def teaches(self, c: npt.ArrayLike, G: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether a group with c correct of G can have an advantage other than 0, bool."""
        raise NotImplementedError

    def success(self, c: npt.ArrayLike, G: npt.ArrayLike) -> Array:
        """Refused: see the class."""
        raise ValueError(self._refusal())

    def failure(self, c: npt.ArrayLike, G: npt.ArrayLike) -> Array:
        """Refused: see the class."""
        raise ValueError(self._refusal())

    def _refusal(self) -> str:
        return (
            f"advantage {self.name!r} depends on each completion's log-probability, not on counts alone; "
            "call completions(rewards, logprobs), or choose an advantage of counts"
        )


def standardised(values: Array) -> Array:
    """(x − mean)/std over the last axis, sample std (ddof 1); 0 where std is 0."""
    centred = values - values.mean(axis=-1, keepdims=True)
    if values.shape[-1] < 2:
        return np.zeros_like(centred)
    std = values.std(axis=-1, ddof=1, keepdims=True)
    spread = std > 1e-12
    return np.asarray(np.where(spread, centred / np.where(spread, std, 1.0), 0.0))


@register
@dataclass(frozen=True, eq=False)
class Unlikely(LikelihoodAdvantage):
    """GRPO on r_i·(1 − β·(G − rank_i)/G), rank 0 the likeliest of the group: rare successes count for more."""

    beta: float = 0.25

    name: ClassVar[str] = "unlikely"
    source: ClassVar[str] = "He et al., arXiv 2506.02355, the unlikeliness reward"

    def __post_init__(self) -> None:
        scalar("beta", self.beta, 0, 1)

    @property
    def min_group(self) -> int:
        """As GRPO."""
        return 2

    def teaches(self, c: npt.ArrayLike, G: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Right answers differ by their rank, wrong ones do not."""
        correct, size = counts(c, G)
        return (correct > 0) & (size >= self.min_group)

    def completions(self, rewards: npt.ArrayLike, logprobs: npt.ArrayLike) -> Array:
        """Advantage of every completion; equal log-probs share their mean rank, so that order cannot matter."""
        r = binary_groups(rewards)
        logp = _same_shape("logprobs", logprobs, r.shape)
        likelier = (logp[:, None, :] > logp[:, :, None]).sum(axis=-1)
        as_likely = (logp[:, None, :] == logp[:, :, None]).sum(axis=-1) - 1
        rank = likelier + as_likely / 2.0
        G = r.shape[1]
        return standardised(r * (1.0 - self.beta * (G - rank) / G))


@register
@dataclass(frozen=True, eq=False)
class DSGRPO(LikelihoodAdvantage):
    """GRPO − γ_p·log π for successes, + γ_n·log π for failures: smooth over the right answers, sharpen on the rest."""

    gamma_p: float = 0.01
    gamma_n: float = 0.01

    name: ClassVar[str] = "ds_grpo"
    source: ClassVar[str] = "Gai et al., arXiv 2511.19942, eq. 6 (the paper tunes γ; .01 is our default)"

    def __post_init__(self) -> None:
        scalar("gamma_p", self.gamma_p, 0)
        scalar("gamma_n", self.gamma_n, 0)

    def teaches(self, c: npt.ArrayLike, G: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Every group does: log π is never 0."""
        return counts(c, G)[1] > 0

    def completions(self, rewards: npt.ArrayLike, logprobs: npt.ArrayLike) -> Array:
        """Advantage of every completion."""
        r = binary_groups(rewards)
        logp = _same_shape("logprobs", logprobs, r.shape)
        return standardised(r) + np.where(r == 1.0, -self.gamma_p, self.gamma_n) * logp


@register
@dataclass(frozen=True, eq=False)
class MCGRPO:
    """A = (r − median)/MAD over an odd group, for graded rewards only.

    Of an odd group of 0/1 rewards the median is the majority's reward and the median absolute deviation is 0: the
    majority learns nothing and the minority's advantage is 1/0. So binary rewards are refused.
    """

    name: ClassVar[str] = "mc_grpo"
    source: ClassVar[str] = "Kim, arXiv 2601.22582 (MC-GRPO)"

    def completions(self, rewards: npt.ArrayLike) -> Array:
        """Advantage of every completion, [N, G]; 0 for the median one.

        Raises:
            ValueError: a group that is even, binary, or has MAD 0 without all rewards being equal.
        """
        r = real("rewards", rewards)
        if r.ndim != 2 or r.shape[1] % 2 == 0:
            raise ValueError(f"rewards has shape {r.shape} but must be [groups, an odd number of completions]")
        if ((r == 0.0) | (r == 1.0)).all():
            raise ValueError(_DEGENERATE)
        centred = r - np.median(r, axis=1, keepdims=True)
        spread = np.median(np.abs(centred), axis=1, keepdims=True)
        if ((spread == 0.0) & (centred != 0.0)).any():
            raise ValueError("rewards has a group whose median absolute deviation is 0 although its rewards differ")
        return np.asarray(centred / np.where(spread == 0.0, 1.0, spread))

    def success(self, c: npt.ArrayLike, G: npt.ArrayLike) -> Array:
        """Refused: see the class."""
        raise ValueError(_DEGENERATE)

    def failure(self, c: npt.ArrayLike, G: npt.ArrayLike) -> Array:
        """Refused: see the class."""
        raise ValueError(_DEGENERATE)


_DEGENERATE = (
    "mc_grpo divides by the median absolute deviation, which is 0 for every odd group of 0/1 rewards; "
    "use drgrpo or rloo for binary rewards, or give graded rewards"
)
