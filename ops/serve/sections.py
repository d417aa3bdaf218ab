"""The parts of the front page. Each is rendered on its own, so that only what has changed is sent again."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from ops.config import RunConfig
from ops.gate import gate_in_words
from ops.serve import figures
from ops.serve.grouplog import GroupLog
from ops.serve.svg import Floats, number
from ops.serve.templating import render
from ops.serve.watch import Moment, Watch

LISTED = 100
"""Problems that the list of changes shows of each kind."""
_BEAT = ("version", "tickets", "tokens_per_s")
_KEPT = 8
"""Answers to how many values of `since` are kept."""


@dataclass(frozen=True, slots=True)
class Strip:
    """One strip chart: its name, what it means, and the dynamics it draws (the second one dashed)."""

    name: str
    meaning: str
    series: tuple[str, ...]
    from_zero: bool = True


STRIPS = (
    Strip("reward", "mean solve rate of the groups that arrived since the last step", ("reward",)),
    Strip("p̂", "moving average of the solve rate, which α follows", ("solve_rate",)),
    Strip("Ĥ", "moving average of token entropy, nats; dashed: its target H*", ("entropy", "target_entropy")),
    Strip("α", "difficulty exponent of FADE", ("alpha",)),
    Strip("δ", "failures weigh 1/δ", ("delta",)),
    Strip("KL", "KL(μ‖π) per token, nats: how far the policy has moved from the one that wrote the batch", ("kl",)),
    Strip("ESS", "effective sample size of the off-policy correction, share of the tokens", ("ess",), False),
    Strip("lag", "versions from writing to training, mean of the batch; dashed: its largest", ("lag_mean", "lag_max")),
    Strip("learner idle", "share of each step that the learner waited for groups", ("idle",)),
)  # fmt: skip


class FrontPage:
    """Renders the sections of the front page, each again only when what it shows has changed."""

    def __init__(self, config: RunConfig, watch: Watch) -> None:
        self._config = config
        self._watch = watch
        self._figures: dict[int, tuple[int, dict[str, Markup]]] = {}
        self._strips: tuple[tuple[float, int], Markup] = ((-1.0, -1), Markup())
        self._evaluations: tuple[int, Markup] = (-1, Markup())

    def sections(self, moment: Moment, since: int) -> dict[str, Markup]:
        """Every section by its element's id. `since`: the version from which changes count."""
        facts, found = self._figures.get(since, (-1, {}))
        if facts != moment.facts:
            found = self._of_facts(moment, since)
            self._figures = {**dict(list(self._figures.items())[-_KEPT:]), since: (moment.facts, found)}
        return {
            "status": render("status.html", **status(self._config, moment)),
            **found,
            "evaluations": self._of_rounds(moment),
            "strips": self._of_history(moment),
            "actors": render("actors.html", actors=actors(moment.summary["actors"], time.time())),
        }

    def _of_facts(self, moment: Moment, since: int) -> dict[str, Markup]:
        watch, ids = self._watch, moment.columns["id"]
        found = figures.bin_problems(moment.columns)
        solved, lost = watch.log.changes(len(ids), since, moment.version)
        changes = [("newly solved", ids[solved]), ("lost again", ids[lost])]
        return {
            "map": render(
                "map.html",
                chart=figures.problem_map(found),
                gate=gate_in_words(self._config),
            ),
            "curve": render("curve.html", **self._curve(moment)),
            "changes": render(
                "changes.html", changes=changes, since=since, version=moment.version, listed=LISTED,
                link=figures.problem_link,
            ),
        }  # fmt: skip

    def _curve(self, moment: Moment) -> dict[str, Any]:
        """pass@k over the problems that the base model has attempted, by its groups alone and by all evidence now."""
        log, columns = self._watch.log, moment.columns
        size, correct = log.counts(log.version_max == 0, len(columns["id"]))
        among = size > 0
        if not among.any():
            return {"chart": None}
        start = figures.pass_at_k_curve(correct[among], (size - correct)[among], self._watch.gate)
        now = figures.pass_at_k_curve(columns["evidence_a"][among], columns["evidence_b"][among], self._watch.gate)
        return {"chart": figures.pass_at_k_chart(start, now), "problems": int(among.sum())}

    def _of_rounds(self, moment: Moment) -> Markup:
        """pass@k on the held-out problems, round by round; nothing before the first."""
        if moment.rounds and self._evaluations[0] != moment.rounds[-1].version:
            newest = moment.rounds[-1]
            chart = figures.evaluation_chart(moment.rounds, self._config.evaluation.k)
            facts = {"problems": len(newest.tallies), "samples": newest.samples}
            self._evaluations = newest.version, render("evaluations.html", chart=chart, **facts)
        return self._evaluations[1]

    def _of_history(self, moment: Moment) -> Markup:
        history, log = moment.history, self._watch.log
        drawn_for = (history[-1]["step"] if history else -1.0, len(log))
        if drawn_for != self._strips[0]:
            self._strips = (drawn_for, render("strips.html", strips=[*map(_strip(history), STRIPS), _token_rate(log)]))
        return self._strips[1]


def status(config: RunConfig, moment: Moment) -> dict[str, Any]:
    """What the head of the page says of the run."""
    return {
        "summary": moment.summary,
        "step": int(moment.summary["dynamics"].get("step", 0)),
        "steps": config.learner.steps,
        "version": moment.version,
        "advantage": config.objective.advantage,
        "model": config.model.path,
    }


def actors(beats: Mapping[str, Mapping[str, Any]], now_s: float) -> list[dict[str, Any]]:
    """One row per actor, by name: what its last heartbeat says, and how long ago that was."""
    return [
        {"name": name, "seen": _ago(now_s - beat.get("time_s", 0.0)), **{key: beat.get(key, "–") for key in _BEAT}}
        for name, beat in sorted(beats.items())
    ]


def _ago(seconds: float) -> str:
    """Coarse, so that a page on which nothing else changes is not sent again every second."""
    if seconds < 10:
        return "now"
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return f"{seconds // 10 * 10:.0f} s ago"


def _strip(history: Sequence[Mapping[str, float]]) -> Callable[[Strip], dict[str, Any]]:
    def column(name: str) -> Floats:
        if name == "idle":
            waited, worked = column("wait_s"), column("step_s")
            return waited / np.maximum(waited + worked, 1e-9)
        return np.array([record.get(name, np.nan) for record in history], np.float64)

    def drawn(strip: Strip) -> dict[str, Any]:
        series = [column(name) for name in strip.series]
        label = f"{strip.name} by step"
        newest = series[0][-1] if len(series[0]) else np.nan
        return {
            "name": strip.name,
            "meaning": strip.meaning,
            "value": number(float(newest)),
            "chart": figures.strip_chart(series, label, strip.from_zero),
        }

    return drawn


def _token_rate(log: GroupLog) -> dict[str, Any]:
    """Tokens per second of committed groups, by the clock of the store, from the first group to the last."""
    rate = np.zeros(0)
    if len(log) > 1 and log.ms[-1] > log.ms[0]:
        bins = min(figures.POINTS, max(1, len(log) // 8))
        seconds = float(log.ms[-1] - log.ms[0]) / 1000
        rate = np.histogram(log.ms, bins, weights=log.tokens)[0] / (seconds / bins)
    return {
        "name": "tokens/s",
        "meaning": "completion tokens of committed groups per second, by time",
        "value": number(float(rate[-1])) if len(rate) else "–",
        "chart": figures.strip_chart([rate], "tokens per second by time", True),
    }
