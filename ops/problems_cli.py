"""`verge problems`: look at problems before a run does, and give a run more of them."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ops.options import AsJson
from store.errors import VergeError

app = typer.Typer(no_args_is_help=True, help="Look at problems before a run does, or give it more.")
LINES = {
    "bad": "rows that cannot be used",
    "duplicate_ids": "ids that another row has",
    "duplicate_prompts": "prompts that another row has",
    "missing_answers": "rows without an answer",
    "unfit_prompts": "prompts that the model cannot take",
    "failed_references": "references that are not correct",
}


@app.command()
def check(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            show_default=False,
            help="A JSONL or Parquet file, a folder of them, reasoning_gym:<dataset>, or a run's TOML file.",
        ),
    ],
    model: Annotated[str | None, typer.Option(help="Count tokens with this model, as in model.path.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="As in `verge up`: problems.columns.prompt=question"),
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Verify each problem's reference answer.")] = True,
    as_json: AsJson = False,
) -> None:
    """What a run would meet: counts, duplicates, lengths, missing answers, and whether reference answers verify.

    Exit status 1 when a run could not start on these problems.
    """
    from ops.config import load_config, override_config
    from ops.problems_check import check_problems

    is_run = source.endswith(".toml")
    if is_run:
        chosen = [] if model is None else [f"model.path={json.dumps(model)}"]
        config = load_config(Path(source), [*chosen, *(overrides or ())])
    else:
        config = override_config(_bare(source, model), overrides or (), "verge problems check")
    found = check_problems(config, with_model=is_run or model is not None, dry_run=dry_run)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        _print(found)
    if not found["ok"]:
        raise VergeError(_first_fault(found))


@app.command()
def add(
    run: Annotated[Path, typer.Argument(help="A run's folder, or its TOML file.", show_default=False)],
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE", show_default=False, help="A JSONL or Parquet file or a folder of them, as problems.source."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="For this file: problems.columns.prompt=question"),
    ] = None,
    skip_present: Annotated[
        bool, typer.Option("--skip-present", help="Leave out what the run has already, instead of refusing the file.")
    ] = False,
) -> None:
    """Give a run more problems to train on, also while it trains. All of the file are added, or none."""
    from ops.config import override_config
    from ops.problems_add import add_problems
    from ops.runfolder import open_config

    config = open_config(run)
    as_given = override_config(config.model_dump(mode="json"), overrides or (), "verge problems add").problems
    added, now = add_problems(config, source, skip_present, as_given)
    print(f"{added} problems added to run {config.name}, which has {now} to train on")


def _bare(source: str, model: str | None) -> dict[str, Any]:
    """The settings of a run on nothing but a source: a prompt may be as long as the model's positions allow."""
    from ops.models import resolve_model
    from ops.prepare import position_limit

    settings: dict[str, Any] = {"name": "check", "problems": {"source": source}, "model": {"path": model or "tiny"}}
    if model is not None and (limit := position_limit(resolve_model(model))) is not None:
        settings |= {"actor": {"context_tokens": limit}, "sampling": {"max_completion_tokens": 1}}
    return settings


def _print(found: dict[str, Any]) -> None:
    print(f"{found['problems']} problems in {found['source']}")
    for name in ("verifiers", "tags", "prompt_characters", "prompt_tokens"):
        if found.get(name):
            print(f"{name.replace('_', ' ')}: " + ", ".join(f"{key} {value}" for key, value in found[name].items()))
    if "references" in found:
        references = found["references"]
        print(f"references verified: {references['checked']}; {references['problems_without']} problems have none")
    for name, words in LINES.items():
        if name in found and found[name]["count"]:
            print(f"{found[name]['count']} {words}, the first:", *found[name]["first"], sep="\n  ")


def _first_fault(found: dict[str, Any]) -> str:
    from ops.problems_check import STOPS_A_RUN

    return next(
        (line for name in STOPS_A_RUN if name in found for line in found[name]["first"]), "there are no problems"
    )
