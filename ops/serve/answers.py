"""What the HTTP API answers: the types of its OpenAPI document. Numbers that are not finite are null."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from store.wire import Manifest


class _Answer(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class Refusal(_Answer):
    """Why a question was not answered."""

    detail: str


class ProblemRow(_Answer):
    """One problem: facts, and the opinions at the run's newest version."""

    id: str
    attempts: int
    """Completions that count as evidence, over the whole run."""
    successes: int
    solve_rate: float | None
    """successes / attempts; null before the first attempt."""
    groups: int
    version: int
    """The version to which the stored evidence is discounted."""
    evidence_a: float
    """Successes, discounted to the newest version, without the prior."""
    evidence_b: float
    """Failures, likewise."""
    posterior_mean: float
    pass_at_k: float
    """Posterior mean of pass@k, k being the gate's."""
    gate: float
    """0 when closed."""
    what_if_posterior_mean: float | None = None
    """Only where another gate was asked about; the opinion of that one on the same facts."""
    what_if_pass_at_k: float | None = None
    what_if_gate: float | None = None


class ProblemPage(_Answer):
    """One page of the problems that a filter keeps."""

    total: int
    """Problems that the filter keeps."""
    offset: int
    limit: int
    problems: list[ProblemRow]


class LogRow(_Answer):
    """One committed group, as it stands in the log."""

    id: str
    stream_id: str
    """Its place in the groups log: milliseconds-sequence."""
    problem_id: str
    G: int
    c: int
    version_min: int
    version_max: int
    tokens: int
    time_s: float


class GroupPage(_Answer):
    """A page of the log of groups, oldest first."""

    total: int
    offset: int
    limit: int
    groups: list[LogRow]


class GroupRow(LogRow):
    """One committed group, and the opinions after it."""

    evidence_a: float
    evidence_b: float
    posterior_mean: float
    pass_at_k: float
    gate: float
    interval_low: float
    """2.5 % quantile of the posterior of the solve rate."""
    interval_high: float
    """97.5 % quantile."""


class ProblemHistory(_Answer):
    """One problem: text, facts, opinions now, and a page of its groups, newest first."""

    problem: dict[str, Any]
    facts: dict[str, Any]
    opinions: dict[str, float]
    total: int
    """Groups of the problem."""
    offset: int
    limit: int
    groups: list[GroupRow]


class PieceText(_Answer):
    """Consecutive tokens [start, end) written by one version."""

    text: str
    version: int
    lag: int
    """Versions between these tokens and the group's draw; until it is drawn, the newest version."""
    start: int
    end: int


class CompletionText(_Answer):
    """One completion; `pieces` covers its first tokens, `tokens` counts all."""

    verdict: str
    reward: float
    finish_reason: str
    tokens: int
    mean_logprob: float | None
    """Mean of log μ(token), nats."""
    pieces: list[PieceText]


class GroupText(_Answer):
    """The completions of a group that is still in the pool."""

    id: str
    drawn_at_step: int | None
    """The last step that drew it."""
    version_at_draw: int
    """The version with which that step began; the newest version before the first."""
    size: int
    """Completions of the group; the first 64 are here."""
    completions: list[CompletionText]


class Changes(_Answer):
    """Problems newly solved and newly lost between two versions."""

    after_version: int
    to_version: int
    newly_solved: list[str]
    newly_lost: list[str]


class PassAtK(_Answer):
    """Mean pass@k over problems, from samples, and its standard error (null for one problem)."""

    k: int
    mean: float
    se: float | None


class Gain(_Answer):
    """pass@k of the first round and of this one on the same problems, and the paired difference with its error."""

    k: int
    before: float
    after: float
    gain: float
    se: float | None


class EvaluationRow(_Answer):
    """One finished evaluation round: `samples` completions of every held-out problem, all written by `version`."""

    version: int
    step: int
    """The learner's, whose weights the version is."""
    actor: str
    began_s: float
    """Unix seconds of the actor's clock."""
    time_s: float
    """Its end, likewise."""
    samples: int
    problems: int
    pass_at_k: list[PassAtK]
    """For those k of the config for which every problem has enough judged completions."""
    solved: int
    distinct_right_answers: float
    """Different right answers to a problem, mean over problems."""
    mean_tokens: float
    entropy: float | None
    """Estimate of the token entropy, nats."""
    truncated_share: float
    error_share: float
    """Completions that the verifier or the engine failed on; they are not judged."""
    gains: list[Gain]
    """Against the first round that is kept."""
    newly_solved: int
    """Problems without a success in that one, and with one in this."""
    newly_lost: int


class EvaluationPage(_Answer):
    """A page of the finished evaluation rounds, oldest first."""

    total: int
    offset: int
    limit: int
    evaluations: list[EvaluationRow]


class Dynamics(_Answer):
    """What the learner read from training, step by step, oldest first."""

    total: int
    """Steps recorded."""
    steps: list[dict[str, float | None]]


class Snapshots(_Answer):
    """Every published version, oldest first."""

    total: int
    weights: list[Manifest]


class Summary(_Answer):
    """The whole run, as `verge state summary --json` prints it."""

    run: str
    phase: str
    reason: str
    weights: Manifest | None
    problems: dict[str, int]
    groups: dict[str, int]
    tickets: dict[str, int]
    refusals: list[dict[str, Any]]
    actors: dict[str, Any]
    dynamics: dict[str, float | None]
    histograms: dict[str, list[int]]
    unsolved_with_most_attempts: list[dict[str, Any]]
    gate: dict[str, Any] = Field(default_factory=dict)
    """The parameters of the opinions: k, tau, prior, and whether the run's advantage reads the gate."""
