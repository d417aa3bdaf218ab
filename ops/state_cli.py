"""`verge state`: what the store knows of a run, while it runs or afterwards from its folder."""

import json
import math
import sys
import time
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.table import Table

from ops.client import StoredRun, with_store
from ops.options import AsJson, Overrides
from ops.runfolder import open_config, read_password
from store.acl import Role, acl_file, rules, user
from store.backup import export_run, import_run
from store.errors import VergeError
from store.keys import Keys
from store.statefile import check_state

app = typer.Typer(no_args_is_help=True, help="Ask a run, live or finished, about its problems.")

RunPath = Annotated[Path, typer.Argument(help="A run's folder, or its TOML file.", show_default=False)]
_PIPE_WIDTH = 200
"""Columns of a table that no terminal shows."""


@app.command()
def summary(run: RunPath, as_json: AsJson = False) -> None:
    """The whole run: phase, weights, problems, groups, actors, training."""
    found = StoredRun(run).summary()
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        _print_tree(found)


@app.command("list")
def list_(
    run: RunPath,
    where: Annotated[str, typer.Option(help="For example 'posterior_mean < 0.1 and attempts >= 16'.")] = "",
    sort: Annotated[str, typer.Option(help="A column; with a minus, largest first: -gate.")] = "-gate",
    limit: Annotated[int, typer.Option(min=1, help="Most problems to print.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Problems by their facts and opinions."""
    rows = StoredRun(run).list_problems(where=where, sort=sort, limit=limit)
    if as_json:
        print(json.dumps({"problems": rows}, indent=2))
        return
    columns = ("id", "attempts", "successes", "posterior_mean", "pass_at_k", "gate", "groups")
    table = Table(*columns)
    table.columns[0].overflow = "fold"  # an id is there to be copied: never cut it
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in columns))
    Console(file=sys.stdout).print(table)


@app.command()
def problem(
    problem_id: Annotated[str, typer.Argument(metavar="ID", help="The problem's id.", show_default=False)],
    run: RunPath,
    as_json: AsJson = False,
) -> None:
    """One problem: its prompt, its facts, the opinions now, and all its groups."""
    found = StoredRun(run).problem_history(problem_id)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    groups = found.pop("groups")
    _print_tree(found)
    table = Table("version", "correct", "posterior mean", "gate")
    for group in groups:
        correct = f"{group['c']} of {group['G']}"
        table.add_row(str(group["version_min"]), correct, _cell(group["posterior_mean"]), _cell(group["gate"]))
    Console(file=sys.stdout).print(table)


@app.command()
def evaluations(run: RunPath, as_json: AsJson = False) -> None:
    """pass@k on the held-out problems, as actors measured it while the run trained (evaluation.every)."""
    rows = StoredRun(run).evaluations()
    if as_json:
        print(json.dumps({"evaluations": rows}, indent=2))
        return
    if not rows:
        every = open_config(run).evaluation.every
        due = f"one is due every {every} versions" if every else "evaluation.every is 0: none is due"
        print(f"no evaluation is finished yet; {due}")
        return
    ks = sorted({row["k"] for found in rows for row in found["pass_at_k"]})
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("version", "problems", *(f"pass@{k}" for k in ks), "distinct", "entropy", "truncated", "errors"):
        table.add_column(name, justify="right")
    for found in rows:
        said = {row["k"]: row for row in found["pass_at_k"]}
        table.add_row(
            str(found["version"]),
            str(found["problems"]),
            *(f"{said[k]['mean']:.3f} ± {_cell(said[k]['se'])}" if k in said else "–" for k in ks),
            _cell(found["distinct_right_answers"]),
            _cell(found["entropy"]),
            f"{found['truncated_share']:.1%}",
            f"{found['error_share']:.1%}",
        )
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(table)


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="The file to write; one that exists is replaced.", show_default=False)],
    run: RunPath,
) -> None:
    """Write every fact of a run into one file, also while it trains. Weights and checkpoints stay where they are."""
    records = StoredRun(run).ask(lambda store, _: export_run(store, file))
    print(f"{file}: {records} records, {file.stat().st_size} bytes")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A file that `verge state export` wrote.", show_default=False)],
    run: Annotated[Path, typer.Argument(help="The TOML file of the empty run to fill.", show_default=False)],
) -> None:
    """Fill an empty run from an exported file, ready to be asked; to train on, copy checkpoints and weights too."""
    config = open_config(run)
    check_state(file)  # before a store is made for it
    if config.store.url is None:
        (config.run_folder / "store").mkdir(parents=True, exist_ok=True)
    records = with_store(config, lambda store: import_run(store, file))
    print(f"run {config.name}: {records} records imported from {file}")


@app.command()
def acl(
    run: RunPath,
    passwords: Annotated[
        Path | None,
        typer.Option(help="A folder with a file per role, named after it, whose first line is its password."),
    ] = None,
) -> None:
    """Print one ACL SETUSER per role: actor, learner, reader. Each still needs a password, as a rule `>password`.

    With --passwords, print a server's whole `aclfile` instead, with their hashes; the default user is off in it.
    """
    keys = Keys(open_config(run).name)
    if passwords is None:
        for role in get_args(Role):
            print(" ".join(["ACL SETUSER", user(keys, role), "on", *rules(keys, role)]))
        return
    print(acl_file(keys, {role: read_password(passwords / role) for role in get_args(Role)}), end="")


@app.command()
def alive(
    actor: Annotated[str, typer.Argument(help="The name of an actor.", show_default=False)],
    run: RunPath,
    within_s: Annotated[float, typer.Option(min=0, help="Oldest heartbeat, in seconds, of an actor that lives.")] = 60,
    overrides: Overrides = None,
) -> None:
    """Exit 0 when the actor's last heartbeat is young enough, 1 when not: for a container's health check."""
    beat = with_store(open_config(run, overrides or ()), lambda store: store.heartbeat(actor))
    age_s = math.inf if beat is None else time.time() - float(beat["time_s"])
    if age_s > within_s:
        raise VergeError(
            f"actor {actor} {'has sent no heartbeat' if beat is None else f'was last heard {age_s:.0f} s ago'}"
        )
    print(f"actor {actor} was heard {age_s:.0f} s ago, at version {beat.get('version', '–')}")


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _print_tree(value: dict[str, Any], indent: int = 0) -> None:
    for key, item in value.items():
        if isinstance(item, dict):
            print(" " * indent + f"{key}:")
            _print_tree(item, indent + 2)
        else:
            print(" " * indent + f"{key:22} {_cell(item)}")
