"""`verge bench`: figures with the bound each is held against."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ops.figures import print_figures
from ops.options import AsJson, Overrides

SMOLLM2 = Path(__file__).with_name("configs") / "smollm2.toml"

bench = typer.Typer(no_args_is_help=True, help="Measure a part against its bound; exit 1 when a check is not ok.")


@bench.command()
def draw(as_json: AsJson = False) -> None:
    """Drawing a batch from 10³ to 10⁶ groups by systematic PPS sampling."""
    from ops.bench_draw import run

    raise typer.Exit(print_figures(run(), as_json))


@bench.command()
def store(as_json: AsJson = False) -> None:
    """Commits against the server's own SET, drawing and fetching, mirror and queries under load."""
    from ops.bench_store import run

    raise typer.Exit(print_figures(run(), as_json))


@bench.command()
def learner(
    model: Annotated[str, typer.Option(help="As model.path of a run.")] = "smollm2",
    as_json: AsJson = False,
) -> None:
    """A step of the learner's loop against a padded one and against this machine's matmuls; what is not gradient."""
    from ops.bench_learner import run
    from ops.models import resolve_model

    raise typer.Exit(print_figures(run(resolve_model(model)), as_json))


@bench.command()
def actor(
    config: Annotated[Path, typer.Option(help="A run's TOML file: its model, problems, sampling and actor.")] = SMOLLM2,
    groups: Annotated[int, typer.Option(min=1, help="Rollout groups of one measurement.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each kind, in turn.")] = 3,
    as_json: AsJson = False,
) -> None:
    """An actor with verification and commits against its own vLLM engine driven bare; what an update costs."""
    from ops.bench_actor import run
    from ops.config import load_config

    raise typer.Exit(print_figures(run(load_config(config), groups, rounds), as_json))


@bench.command()
def publish(
    model: Annotated[str, typer.Option(help="As model.path of a config.")] = "smollm2",
    as_json: AsJson = False,
) -> None:
    """Size and cost of a delta snapshot after bf16 AdamW steps at lr 1e-6."""
    from ops.bench_publish import run
    from ops.models import resolve_model

    raise typer.Exit(print_figures(run(resolve_model(model)), as_json))


@bench.command()
def chaos(
    kills: Annotated[int, typer.Option(min=1, help="Processes to kill: actors, learner and server.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Kill −9 at random, then recount every problem from the log of groups."""
    from ops.bench_chaos import run

    raise typer.Exit(print_figures(run(kills), as_json))


@bench.command()
def loop(
    simulated: Annotated[bool, typer.Option("--simulated", help="Scripted actors and steps; no model.")] = False,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(min=3, help="Learner steps of each way to do the job.")] = 20,
    without_peer: Annotated[bool, typer.Option("--without-peer", help="Measure only Verge, not TRL.")] = False,
    as_json: AsJson = False,
) -> None:
    """One job by TRL, by Verge, and by Verge without its asynchrony; --simulated: the loop against its bounds."""
    if simulated:
        from ops.bench_overlap import run as run_simulated

        raise typer.Exit(print_figures(run_simulated(), as_json))
    from ops.bench_loop import run, table

    found = run(steps, not without_peer, overrides or ())
    if not as_json:
        Console().print(table(found))
    raise typer.Exit(print_figures(found, as_json))


@bench.command()
def soak(
    steps: Annotated[int, typer.Option(min=20, help="Learner steps.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Real steps of the tiny model under a scripted engine: memory, files and connections stay, counts are exact."""
    from ops.bench_soak import run
    from ops.models import resolve_model

    raise typer.Exit(print_figures(run(resolve_model("tiny"), steps), as_json))
