"""`verge lab`: what the methods do, measured on models that train in a minute."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops.figures import print_figures
from ops.gating_cli import refusals
from ops.options import AsJson

if TYPE_CHECKING:
    from ops.labs.settings import RunSettings

app = typer.Typer(no_args_is_help=True, help="Experiments on what the methods do; exit 1 when a check is not ok.")

RUNS = Path("runs")
Results = Annotated[
    Path | None,
    typer.Option(help="JSONL file that runs are added to; those in it are not run again.", show_default=False),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at a time; by default the cores.", show_default=False)]
Minutes = Annotated[float | None, typer.Option(min=0, help="Start no run after so long.", show_default=False)]
Out = Annotated[Path | None, typer.Option(help="Folder of RESULTS.md and its figures.", show_default=False)]
Quick = Annotated[bool, typer.Option("--quick", help="A few short runs: under 10 minutes on two cores.")]


@app.command()
def collapse(
    results: Results = None, jobs: Jobs = None, minutes: Minutes = None, out: Out = None, quick: Quick = False
) -> None:
    """Every method at equal rollouts: pass@k against the base, fresh and stale, and a verdict for every claim."""
    from ops.labs import plans

    _carry_out("collapse", plans.quick() if quick else plans.collapse(), results, jobs, minutes, out, quick)


@app.command()
def offpolicy(
    results: Results = None, jobs: Jobs = None, minutes: Minutes = None, out: Out = None, quick: Quick = False
) -> None:
    """Lag × correction × trust region × method: where staleness breaks learning, and what holds."""
    from ops.labs import offpolicy_plan

    plan = offpolicy_plan.quick() if quick else offpolicy_plan.whole()
    _carry_out("offpolicy", plan, results, jobs, minutes, out, quick)


@app.command()
def report(
    results: Annotated[list[Path], typer.Argument(help="JSONL files of `verge lab collapse` and `offpolicy`.")],
    out: Annotated[Path, typer.Option(help="Folder of RESULTS.md and its figures.")],
) -> None:
    """Tables, figures and verdicts from finished runs alone."""
    from ops.labs.report import write

    print(write(results, out))


@app.command()
def filtered(
    figure: Annotated[Path | None, typer.Option(help="Also draw the figure into this PNG file.")] = None,
    as_json: AsJson = False,
) -> None:
    """KL control at falling β against direct fits to the filtered model, with exact gradients."""
    from ops.lab_filtered import run

    raise typer.Exit(print_figures(run(figure), as_json))


@app.command()
def staleness(
    lag: Annotated[int, typer.Option(min=0, help="Age of every rollout, in versions.")] = 4,
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps of 64 groups of 8.")] = 60,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order of problems and of sampling.")] = 0,
    advantage: Annotated[str, typer.Option(help="Name in the registry of advantages.")] = "fade_bbg",
    as_json: AsJson = False,
) -> None:
    """The same method on old rollouts, with and without the trust region on negatives: pass@16 rises, or collapses."""
    from ops.labs.staleness import run

    with refusals():
        figures = run(lag, steps, seed, advantage)
    raise typer.Exit(print_figures(figures, as_json))


def _carry_out(
    name: str,
    plan: "list[RunSettings]",
    results: Path | None,
    jobs: int | None,
    minutes: float | None,
    out: Path | None,
    quick: bool,
) -> None:
    from ops.labs.report import write
    from ops.labs.runner import carry_out

    results = results or RUNS / f"lab-{name}{'-quick' if quick else ''}.jsonl"
    results.parent.mkdir(parents=True, exist_ok=True)
    left = carry_out(plan, results, jobs or len(os.sched_getaffinity(0)), minutes)
    print(write([results], out or results.with_suffix("")))
    print(f"{left} of {len(plan)} runs are left; the same command goes on with them" if left else "All runs are done.")
