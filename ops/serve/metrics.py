"""Prometheus metrics of a whole run from what its store knows: one endpoint for all of its processes.

`python -m ops.serve.metrics` prints METRICS.md, the table of them all.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from fastapi import APIRouter, Request
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from learner.alarms import ALARMS
from learner.opinions import LAG_GROUPS
from ops.serve.watch import Moment, Watch

Kind = Literal["counter", "gauge"]


@dataclass(frozen=True, slots=True)
class Known:
    """A metric: its name in our name space, what it means, and in which unit it is."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    label: str | None = None
    """What tells its series apart, besides the run."""

    @property
    def exposed(self) -> str:
        """Its name in Prometheus, without the `_total` that ends a counter there."""
        return "verge_" + self.name.replace("/", "_")


def _each(room: str, kind: Kind, label: str | None, rows: Iterable[tuple[str, str, str]]) -> Iterator[Known]:
    for name, unit, meaning in rows:
        yield Known(f"{room}/{name}", kind, unit, meaning, label)


METRICS = (
    *_each("store", "counter", None, (
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
    *_each("store", "gauge", None, (
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
    )),
    *_each("gating", "gauge", None, (
        ("open", "problems", "problems whose gate is open at the newest version"),
        ("posterior_mean", "probability", "mean over problems of the posterior mean solve rate"),
        ("solve_rate", "probability", "p̂, moving average of the solve rate, which α follows"),
        ("entropy", "nats per token", "Ĥ, moving average of token entropy"),
        ("target_entropy", "nats per token", "H*, which δ holds Ĥ against"),
        ("alpha", "1", "α, difficulty exponent of FADE at the last step"),
        ("delta", "1", "δ at the last step: failures weigh 1/δ"),
        ("active_problems", "problems", "open gates as the last step found them"),
    )),
    *_each("learner", "gauge", None, (
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
    *_each("learner", "gauge", None, (
        (f"alarm_{name}", "0 or 1", f"whether the alarm `{name}` is on") for name in ALARMS
    )),
    Known("learner/lag_groups", "gauge", "groups", "groups of the batch that had this lag", "lag"),
    *_each("actor", "counter", "actor", (
        ("completions", "completions", "completions generated since the actor's start"),
        ("errors", "completions", "of them failed on by the verifier or the engine"),
    )),
    *_each("actor", "gauge", "actor", (
        ("version", "versions", "version that the actor generates with"),
        ("tickets", "tickets", "tickets that it holds"),
        ("tokens_per_s", "tokens per second", "completion tokens generated, between its last two heartbeats"),
        ("reads_from", "versions", "oldest version that it is reading, while it loads weights"),
        ("wants_full", "0 or 1", "whether it asks for a full snapshot"),
        ("update_s", "seconds", "time spent on loading weights since its start"),
        ("up_s", "seconds", "time since its start"),
        ("time_s", "Unix seconds", "its last heartbeat, by its own clock"),
    )),
)  # fmt: skip
"""Every metric of Verge, in one name space."""

_OF_GATING = {known.name.partition("/")[2] for known in METRICS if known.name.startswith("gating")}


def metric_of(dynamic: str) -> str:
    """The metric that shows a name of the dynamics."""
    if dynamic.startswith(LAG_GROUPS):
        return "learner/lag_groups"
    return f"{'gating' if dynamic in _OF_GATING else 'learner'}/{dynamic}"


def values_of(moment: Moment) -> dict[str, dict[str, float]]:
    """Metric → label → value; the label is "" where there is none."""
    summary, columns = moment.summary, moment.columns
    problems = summary["problems"]
    found: dict[str, dict[str, float]] = {f"store/{name}": {"": value} for name, value in summary["groups"].items()}
    single = {
        "store/tickets_open": summary["tickets"]["open"],
        "store/tickets_leased": summary["tickets"]["leased"],
        "store/problems": problems["total"],
        "store/problems_attempted": problems["attempted"],
        "store/problems_solved": problems["solved"],
        "store/version": moment.version,
        "store/running": summary["phase"] == "running",
        "gating/open": problems["gate_open"],
        "gating/posterior_mean": float(np.mean(columns["posterior_mean"])) if problems["total"] else math.nan,
    }
    found |= {name: {"": value} for name, value in single.items()}
    for name, value in summary["dynamics"].items():
        label = name.removeprefix(LAG_GROUPS) if name.startswith(LAG_GROUPS) else ""
        found.setdefault(metric_of(name), {})[label] = math.nan if value is None else value
    for actor, beat in summary["actors"].items():
        for name, value in beat.items():
            if isinstance(value, int | float):
                found.setdefault(f"actor/{name}", {})[actor] = value
    return found


class _Run(Collector):
    """The metrics of a run at one moment."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment

    def collect(self) -> Iterator[Metric]:
        values = values_of(self._moment)
        run = str(self._moment.summary["run"])
        for known in METRICS:
            if known.name not in values:
                continue
            labels = ["run"] if known.label is None else ["run", known.label]
            make = CounterMetricFamily if known.kind == "counter" else GaugeMetricFamily
            family = make(known.exposed, f"{known.meaning} ({known.unit})", labels=labels)
            for label, value in values[known.name].items():
                family.add_metric([run] if known.label is None else [run, label], float(value))
            yield family


def metrics(watch: Watch) -> APIRouter:
    """The route that a Prometheus server reads."""
    router = APIRouter()

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def read(request: Request) -> Response:
        """Every metric, in the format that Prometheus asks for."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(_Run(await watch.now())), headers={"Content-Type": content_type})

    return router


def table(known_metrics: Iterable[Known] = METRICS) -> str:
    """METRICS.md."""
    lines = [
        "# Metrics",
        "",
        "`verge serve` exposes them at `/metrics`, with the label `run`. Written by `python -m ops.serve.metrics`.",
        "",
        "| name | in Prometheus | kind | unit | what it is |",
        "|---|---|---|---|---|",
    ]
    for known in known_metrics:
        exposed = known.exposed + ("_total" if known.kind == "counter" else "")
        labels = "" if known.label is None else f" by {known.label}"
        lines.append(f"| {known.name} | `{exposed}` | {known.kind} | {known.unit} | {known.meaning}{labels} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
