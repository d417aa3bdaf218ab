"""Every metric of Verge, in one name space.

`python -m ops.monitor.known` prints METRICS.md, the table of them all.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from learner.alarms import ALARMS
from learner.opinions import LAG_GROUPS
from store.evaluations import Round
from store.scores import scores

Kind = Literal["counter", "gauge"]
Values = Mapping[str, Mapping[str, float]]
"""Metric → label → value; the label is "" where there is none."""


@dataclass(frozen=True, slots=True)
class Known:
    """A metric: its name in our name space, what it means, and in which unit it is."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    at: str
    """Whose endpoints have it."""
    label: str | None = None
    """What tells its series apart, besides the run."""

    @property
    def exposed(self) -> str:
        """Its name in Prometheus, without the `_total` that ends a counter there."""
        return "verge_" + self.name.replace("/", "_")


_SERVE, _LEARNER, _ACTOR = "serve", "serve, learner", "serve, actor"


def _each(
    room: str, kind: Kind, at: str, rows: Iterable[tuple[str, str, str]], label: str | None = None
) -> Iterator[Known]:
    for name, unit, meaning in rows:
        yield Known(f"{room}/{name}", kind, unit, meaning, at, label)


METRICS = (
    *_each("store", "counter", _SERVE, (
        ("issued", "tickets", "tickets issued"),
        ("refunded", "tickets", "tickets that yielded nothing to train on, and may be issued anew"),
        ("committed", "groups", "groups committed"),
        ("duplicate", "groups", "commits of a ticket that had ended already: not counted again"),
        ("refused", "tickets", "tickets that an actor gave up, with a reason"),
        ("poisoned", "tickets", "tickets set aside after too many actors failed on them"),
        ("drawn", "groups", "draws of a group for a step"),
        ("used", "groups", "groups that left the pool trained on"),
        ("expired", "groups", "groups that left the pool too old"),
        ("zero_mass", "groups", "groups that left the pool because no advantage in use learns from them"),
        ("lost_payload", "groups", "groups that left the pool without their payload"),
        ("rolled_back", "groups", "groups trained on that a resume took back"),
        ("errors", "completions", "completions that the verifier or the engine failed on"),
        ("undecodable", "payloads", "payloads that could not be decoded"),
    )),
    *_each("store", "gauge", _SERVE, (
        ("live_bytes", "bytes", "payloads of the pool"),
        ("payload_bytes", "bytes", "payloads written, commits that are under way included"),
        ("pool", "groups", "groups that can be drawn, or wait for a checkpoint that covers their use"),
        ("tickets_open", "tickets", "tickets that have not ended"),
        ("tickets_leased", "tickets", "of them with an actor"),
        ("problems", "problems", "problems of the run"),
        ("problems_attempted", "problems", "with a committed group"),
        ("problems_solved", "problems", "with a success"),
        ("version", "versions", "newest announced version of the weights"),
        ("running", "0 or 1", "whether the run goes on"),
        ("max_payload_bytes", "bytes", "payloads at which tickets wait (store.max_payload_mib)"),
        ("memory_bytes", "bytes", "memory that Redis has allocated, over all nodes"),
        ("memory_limit_bytes", "bytes", "memory at which Redis refuses to write (its maxmemory); 0: none"),
    )),
    *_each("gating", "gauge", _SERVE, (
        ("open", "problems", "problems whose gate is open at the newest version"),
        ("posterior_mean", "probability", "mean over problems of the posterior mean solve rate"),
        ("evaluated_version", "versions", "version of the last finished evaluation on held-out problems"),
        ("evaluated_entropy", "nats per token", "token entropy, estimated from that evaluation's completions"),
    )),
    *_each("gating", "gauge", _SERVE, (
        ("pass_at_k", "probability", "pass@k on held-out problems in the last finished evaluation"),
        ("pass_at_k_se", "probability", "standard error of that pass@k over problems"),
    ), "k"),
    *_each("gating", "gauge", _LEARNER, (
        ("solve_rate", "probability", "p̂, moving average of the solve rate, which α follows"),
        ("entropy", "nats per token", "Ĥ, moving average of token entropy"),
        ("target_entropy", "nats per token", "H*, which δ holds Ĥ against"),
        ("alpha", "1", "α, difficulty exponent of FADE at the last step"),
        ("delta", "1", "δ at the last step: failures weigh 1/δ"),
        ("active_problems", "problems", "open gates as the last step found them"),
    )),
    *_each("learner", "gauge", _LEARNER, (
        ("step", "steps", "finished steps"),
        ("version", "versions", "version that the last step made"),
        ("reward", "probability", "mean solve rate of the groups that arrived before the last step"),
        ("loss", "1", "loss of the last step"),
        ("grad_norm", "1", "norm of the gradient before clipping"),
        ("ess", "share", "effective sample size of the off-policy correction"),
        ("kl", "nats per token", "KL(μ‖π) of the batch"),
        ("ratio_mean", "1", "mean of π/μ over tokens"),
        ("ratio_max", "1", "largest π/μ"),
        ("clip_share_positive", "share", "tokens of positive completions outside the trust region"),
        ("clip_share_negative", "share", "tokens of negative completions outside the trust region"),
        ("missing_share", "share", "tokens without a behaviour log-prob, masked"),
        ("trained_tokens", "tokens", "completion tokens that the step trained on"),
        ("groups", "groups", "groups of the batch"),
        ("completions", "completions", "completions of the batch"),
        ("tokens", "tokens", "completion tokens of the batch"),
        ("lag_mean", "versions", "mean lag of the batch"),
        ("lag_max", "versions", "largest lag of the batch"),
        ("max_lag", "versions", "largest lag that is trained on (admission.max_lag)"),
        ("idle_share", "share", "time waited for groups, since the learner's first batch"),
        ("step_s", "seconds", "duration of the step, without the wait for its batch"),
        ("wait_s", "seconds", "wait for the batch"),
        ("publish_blocked_s", "seconds", "how long publishing held the learner up"),
        ("forward_backward_s", "seconds", "of the step, its forward and backward passes"),
        ("optimiser_s", "seconds", "of the step, its optimiser steps"),
        ("second_moment", "nats²", "mean squared log ratio of the tokens inside the trust region"),
        ("held_share", "share", "tokens held back by KL-Cov"),
        ("snapshot_size_ratio", "share", "bytes of the newest snapshot over those of a full one"),
        ("head_step", "steps", "step of the newest measurement of the output head"),
        ("head_change", "1", "norm of the output head's change since the base model"),
        ("head_top_share", "share", "of that change, what lies in its largest singular direction"),
    )),
    *_each("learner", "gauge", _LEARNER, (
        (f"alarm_{name}", "0 or 1", f"whether the alarm `{name}` is on") for name in ALARMS
    )),
    Known("learner/lag_groups", "gauge", "groups", "groups of the batch that had this lag", _LEARNER, "lag"),
    *_each("actor", "counter", _ACTOR, (
        ("completions", "completions", "completions generated since the actor's start"),
        ("errors", "completions", "of them failed on by the verifier or the engine"),
        ("tokens", "tokens", "completion tokens of those completions"),
        ("idle_s", "seconds", "time without a group under way, since the actor's start"),
    ), "actor"),
    *_each("actor", "gauge", _ACTOR, (
        ("version", "versions", "version that the actor generates with"),
        ("tickets", "tickets", "tickets that it holds"),
        ("verifying", "groups", "of their groups, generated and being judged or committed"),
        ("tokens_per_s", "tokens per second", "completion tokens generated, between its last two heartbeats"),
        ("reads_from", "versions", "oldest version that it is reading, while it loads weights"),
        ("wants_full", "0 or 1", "whether it asks for a full snapshot"),
        ("evaluating", "versions", "version that it evaluates, while it does"),
        ("update_s", "seconds", "time spent on loading weights since its start"),
        ("up_s", "seconds", "time since its start"),
        ("time_s", "Unix seconds", "its last heartbeat, by its own clock"),
    ), "actor"),
)  # fmt: skip
"""Every metric of Verge, in one name space."""

_OF_GATING = {known.name.partition("/")[2] for known in METRICS if known.name.startswith("gating")}


def metric_of(dynamic: str) -> str:
    """The metric that shows a name of the dynamics."""
    if dynamic.startswith(LAG_GROUPS):
        return "learner/lag_groups"
    return f"{'gating' if dynamic in _OF_GATING else 'learner'}/{dynamic}"


def of_dynamics(dynamics: Mapping[str, float | None]) -> dict[str, dict[str, float]]:
    """What the learner records of a step, as metrics; None, which JSON has for it, is NaN."""
    found: dict[str, dict[str, float]] = {}
    for name, value in dynamics.items():
        label = name.removeprefix(LAG_GROUPS) if name.startswith(LAG_GROUPS) else ""
        found.setdefault(metric_of(name), {})[label] = math.nan if value is None else value
    return found


def of_beats(beats: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, float]]:
    """Actors' heartbeats, as metrics."""
    found: dict[str, dict[str, float]] = {}
    for actor, beat in beats.items():
        for name, value in beat.items():
            if isinstance(value, int | float):
                found.setdefault(f"actor/{name}", {})[actor] = value
    return found


def of_round(found: Round, ks: Sequence[int]) -> dict[str, dict[str, float]]:
    """A finished evaluation round, as metrics."""
    said = scores(found.tallies, ks)
    return {
        "gating/evaluated_version": {"": found.version},
        "gating/evaluated_entropy": {"": said["entropy"]},
        "gating/pass_at_k": {str(row["k"]): row["mean"] for row in said["pass_at_k"]},
        "gating/pass_at_k_se": {str(row["k"]): row["se"] for row in said["pass_at_k"]},
    }


_HEAD = """# Metrics

Every one has the label `run`. `verge serve` shows the whole run at `/metrics`; each actor and each rank of the learner
has an endpoint of its own where `[metrics]` gives it a port: there it shows what it last reported to the store, with
the memory and CPU time of its process (`process_…`), and an actor also what vLLM says of its engine (`vllm:…`, which
vLLM documents). A figure that two endpoints show is the same figure: take the `max` over them, as the alerts
(`alerts.yml`) and the dashboard (`dashboard.json`) do. Written by `python -m ops.monitor.known`.

| name | in Prometheus | kind | unit | what it is | endpoints |
|---|---|---|---|---|---|
"""


def table(known_metrics: Iterable[Known] = METRICS) -> str:
    """METRICS.md."""
    lines = []
    for known in known_metrics:
        exposed = known.exposed + ("_total" if known.kind == "counter" else "")
        meaning = known.meaning + ("" if known.label is None else f" by {known.label}")
        lines.append(f"| {known.name} | `{exposed}` | {known.kind} | {known.unit} | {meaning} | {known.at} |\n")
    return _HEAD + "".join(lines)


if __name__ == "__main__":
    print(table(), end="")
