"""The Grafana dashboard of a run, panel by panel; `python -m ops.monitor.dashboard` prints dashboard.json."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_COLUMNS, _WIDE, _HIGH = 24, 8, 7
"""Grafana's grid, and a panel in it."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: what is drawn, by its name in the legend, and the unit as Grafana calls it."""

    title: str
    unit: str
    queries: Sequence[tuple[str, str]]
    """(name, PromQL); `{{actor}}` in the name is the series' label."""
    description: str = ""


def _run(metric: str) -> str:
    """A figure of the run, whichever of its endpoints has been asked."""
    return f'max(verge_{metric}{{run="$run"}})'


def _rate(metric: str) -> str:
    return f'max(rate(verge_{metric}_total{{run="$run"}}[$__rate_interval]))'


def _per_actor(metric: str) -> str:
    return f'max by (actor) (verge_{metric}{{run="$run"}})'


PANELS = (
    Panel("Reward and solve rate", "percentunit", (
        ("reward", _run("learner_reward")), ("p̂", _run("gating_solve_rate")),
        ("posterior mean", _run("gating_posterior_mean")),
    ), "Mean solve rate of the groups that arrived, its moving average, and what is believed of all problems"),
    Panel("pass@k on held-out problems", "percentunit", (
        ("pass@{{k}}", 'max by (k) (verge_gating_pass_at_k{run="$run"})'),
    ), "From samples of the last finished evaluation (evaluation.every)"),
    Panel("Steps per hour", "short", (("steps", '3600 * max(deriv(verge_learner_step{run="$run"}[10m]))'),)),
    Panel("Problems", "short", (
        ("attempted", _run("store_problems_attempted")), ("solved", _run("store_problems_solved")),
        ("gate open", _run("gating_open")), ("all", _run("store_problems")),
    ), "A gate that is open says that a problem can still teach"),
    Panel("Entropy", "short", (
        ("Ĥ", _run("gating_entropy")), ("H*", _run("gating_target_entropy")),
    ), "Nats per token; δ holds Ĥ against H*"),
    Panel("FADE", "short", (("α", _run("gating_alpha")), ("δ", _run("gating_delta"))),
          "α: how much harder problems weigh more; failures weigh 1/δ"),
    Panel("Off-policy", "short", (
        ("effective sample size", _run("learner_ess")), ("KL(μ‖π), nats per token", _run("learner_kl")),
        ("clipped, positive", _run("learner_clip_share_positive")),
        ("clipped, negative", _run("learner_clip_share_negative")),
    ), "How far the policy has moved from the versions that wrote the batch"),
    Panel("Lag", "short", (
        ("mean", _run("learner_lag_mean")), ("largest", _run("learner_lag_max")), ("bound", _run("learner_max_lag")),
    ), "Versions between the learner and the oldest token of a group, when it is drawn"),
    Panel("Where a step's time goes", "s", (
        ("wait for groups", _run("learner_wait_s")), ("step", _run("learner_step_s")),
        ("forward and backward", _run("learner_forward_backward_s")), ("optimiser", _run("learner_optimiser_s")),
        ("held up by publishing", _run("learner_publish_blocked_s")),
    )),
    Panel("Learner idle", "percentunit", (("idle", _run("learner_idle_share")),),
          "Share of its time that the learner has waited for groups: more actors"),
    Panel("Completion tokens per second", "short", (
        ("{{actor}}", _per_actor("actor_tokens_per_s")), ("all", f"sum({_per_actor('actor_tokens_per_s')})"),
    )),
    Panel("Actors idle", "percentunit", (
        ("{{actor}}", 'max by (actor) (rate(verge_actor_idle_s_total{run="$run"}[$__rate_interval]))'),
    ), "Share of its time that an actor has nothing under way: fewer actors, or a higher admission.max_lag"),
    Panel("Actors' versions", "short", (
        ("{{actor}}", _per_actor("actor_version")), ("announced", _run("store_version")),
    )),
    Panel("Groups per second", "short", (
        ("committed", _rate("store_committed")), ("drawn", _rate("store_drawn")), ("expired", _rate("store_expired")),
        ("without mass", _rate("store_zero_mass")), ("refunded tickets", _rate("store_refunded")),
    ), "What is committed, what a step trains on, and what leaves the pool without having been trained on"),
    Panel("Errors", "percentunit", (
        ("{{actor}}", 'max by (actor) (rate(verge_actor_errors_total{run="$run"}[$__rate_interval])) / '
                      'max by (actor) (rate(verge_actor_completions_total{run="$run"}[$__rate_interval]))'),
    ), "Share of completions that the verifier or the engine failed on: no evidence, not trained on"),
    Panel("Pool and tickets", "short", (
        ("groups in the pool", _run("store_pool")), ("open tickets", _run("store_tickets_open")),
        ("with an actor", _run("store_tickets_leased")),
    )),
    Panel("Memory of the store", "bytes", (
        ("Redis", _run("store_memory_bytes")), ("its maxmemory", _run("store_memory_limit_bytes")),
        ("payloads of the pool", _run("store_live_bytes")), ("their bound", _run("store_max_payload_bytes")),
    )),
    Panel("Memory of the processes", "bytes", (
        ("{{job}} {{instance}}", 'process_resident_memory_bytes{job=~"verge-.*"}'),
    ), "Of actors and learner with an endpoint ([metrics]); an engine's own processes are not in it"),
    Panel("Engine (vLLM)", "percentunit", (
        ("{{instance}} keys and values", "vllm:kv_cache_usage_perc"),
        ("{{instance}} prefix hits", "rate(vllm:prefix_cache_hits_total[$__rate_interval]) / "
                                     "rate(vllm:prefix_cache_queries_total[$__rate_interval])"),
    ), "At an actor's endpoint: memory of keys and values in use, prompt tokens found in the prefix cache"),
)  # fmt: skip


def dashboard(panels: Sequence[Panel] = PANELS) -> dict[str, Any]:
    """What Grafana imports. It asks for the Prometheus to read from, and for the run."""
    source = {"type": "prometheus", "uid": "${source}"}
    per_row = _COLUMNS // _WIDE
    drawn = [
        {
            "id": number + 1,
            "type": "timeseries",
            "title": panel.title,
            "description": panel.description,
            "datasource": source,
            "gridPos": {"x": number % per_row * _WIDE, "y": number // per_row * _HIGH, "w": _WIDE, "h": _HIGH},
            "fieldConfig": {"defaults": {"unit": panel.unit, "custom": {"spanNulls": True}}, "overrides": []},
            "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
            "targets": [
                {"refId": chr(ord("A") + index), "datasource": source, "expr": query, "legendFormat": name}
                for index, (name, query) in enumerate(panel.queries)
            ],
        }
        for number, panel in enumerate(panels)
    ]
    run = {"query": "label_values(verge_store_running, run)", "refId": "runs"}
    return {
        "uid": "verge-run",
        "title": "Verge: a run",
        "tags": ["verge"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                {"name": "run", "label": "Run", "type": "query", "datasource": source, "query": run, "refresh": 2},
            ]
        },
        "annotations": {
            "list": [
                {
                    "name": "alerts",
                    "enable": True,
                    "datasource": source,
                    "expr": 'ALERTS{alertstate="firing", run="$run"}',
                    "titleFormat": "{{alertname}}",
                    "iconColor": "red",
                }
            ]
        },
        "panels": drawn,
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1, ensure_ascii=False))
