"""What a run did, from the store's facts: as one JSON object, and as a page a person can read."""

from collections.abc import Mapping, Sequence
from typing import Any

from learner.opinions import LAG_GROUPS
from ops.config import RunConfig
from store.client import Store
from store.queries import evaluations, group_log


async def summarise(
    store: Store, config: RunConfig, seconds: float, evaluation: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Collect the summary of a finished run.

    Args:
        seconds: wall-clock time of this `verge up`.
        evaluation: rows of `ops.evaluate.compare`, empty when nothing was compared.
    """
    first_try: dict[str, int] = {}
    solved: set[str] = set()
    for entry in await group_log(store):
        first_try.setdefault(entry.problem_id, entry.c)
        if entry.c:
            solved.add(entry.problem_id)
    history = await store.dynamics_history(config.learner.steps)
    manifest = await store.manifest()
    counters = await store.counters()
    _, reason = await store.phase()
    steps = [record for record in history if "step" in record]
    return {
        "run": config.name,
        "seed": config.seed,
        "steps": int(steps[-1]["step"]) if steps else 0,
        "ended": reason,
        "seconds": round(seconds, 1),
        "model": config.model.path,
        "advantage": config.objective.advantage,
        "evaluation": {
            "method": config.evaluation.method if evaluation else "off",
            "pass_at_k": list(evaluation),
        },
        "evaluations": await evaluations(store, config.evaluation.k),
        "problems": {
            "train": len(await store.problem_ids()),
            "attempted": len(first_try),
            "solved": len(solved),
            "newly_solved": sorted(problem for problem, c in first_try.items() if c == 0 and problem in solved),
        },
        "reward": {"first_5_steps": _mean(steps[:5], "reward"), "last_5_steps": _mean(steps[-5:], "reward")},
        "groups": counters,
        "lag_histogram": lag_histogram(steps),
        "learner_idle_share": steps[-1]["idle_share"] if steps else 0.0,
        "weights": {"version": manifest.version, "path": manifest.path} if manifest else None,
    }


def summary_text(summary: Mapping[str, Any]) -> str:
    """The summary as a page of text."""
    problems, groups, reward = summary["problems"], summary["groups"], summary["reward"]
    lines = [
        "",
        f"run {summary['run']}: {summary['steps']} steps of {summary['advantage']} in {summary['seconds']:.0f} s; "
        f"it ended because {summary['ended']}",
        "",
    ]
    rows = summary["evaluation"]["pass_at_k"]
    if rows:
        lines.append(f"held-out problems ({summary['evaluation']['method']}), mean ± standard error over problems")
        lines.append(f"  {'':10}{'base':>16}{'trained':>16}{'gain (paired)':>18}")
        for row in rows:
            lines.append(
                f"  {'pass@' + str(row['k']):10}{row['base']:>9.3f} ± {row['base_se']:.3f}"
                f"{row['trained']:>9.3f} ± {row['trained_se']:.3f}{row['gain']:>+11.3f} ± {row['gain_se']:.3f}"
            )
        lines.append("")
    if summary["evaluations"]:
        lines += [*_while_it_trained(summary["evaluations"]), ""]
    lags = " ".join(f"{lag}:{count}" for lag, count in summary["lag_histogram"].items()) or "none"
    lines += [
        f"training problems  {problems['attempted']} of {problems['train']} attempted, {problems['solved']} solved, "
        f"{len(problems['newly_solved'])} newly (failed at their first visit, solved since)",
        "mean reward        none: no step was taken"
        if reward["first_5_steps"] is None
        else f"mean reward        {reward['first_5_steps']:.3f} in the first 5 steps, "
        f"{reward['last_5_steps']:.3f} in the last 5",
        f"rollout groups     {groups.get('committed', 0)} committed, {groups.get('drawn', 0)} drawn, "
        f"{groups.get('expired', 0)} expired, {groups.get('refunded', 0)} tickets refunded",
        f"lag when drawn     {lags}  (versions:groups)",
        f"learner idle       {summary['learner_idle_share']:.0%}",
    ]
    if summary["weights"] is not None:
        lines.append(f"weights            {summary['weights']['path']} (version {summary['weights']['version']})")
    return "\n".join(lines)


def _while_it_trained(rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each k: pass@k at the versions that actors evaluated; of many, the first and the last eight."""
    shown = [*rounds[:1], *rounds[1:][-8:]]
    lines = [f"while it trained ({rounds[-1]['samples']} completions a problem), by version"]
    lines.append(f"  {'':10}" + "".join(f"{found['version']:>8}" for found in shown))
    for k in sorted({row["k"] for found in shown for row in found["pass_at_k"]}):
        means = [{row["k"]: f"{row['mean']:.3f}" for row in found["pass_at_k"]}.get(k, "–") for found in shown]
        lines.append(f"  {f'pass@{k}':10}" + "".join(f"{mean:>8}" for mean in means))
    return lines


def _mean(records: Sequence[Mapping[str, float]], name: str) -> float | None:
    return sum(record[name] for record in records) / len(records) if records else None


def lag_histogram(records: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """Groups drawn at each lag, over the run."""
    total: dict[int, int] = {}
    for record in records:
        for name, count in record.items():
            if name.startswith(LAG_GROUPS):
                lag = int(name.removeprefix(LAG_GROUPS))
                total[lag] = total.get(lag, 0) + int(count)
    return {str(lag): total[lag] for lag in sorted(total) if total[lag]}
