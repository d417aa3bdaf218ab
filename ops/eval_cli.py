"""The `verge eval` command."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ops.options import AsJson, Overrides
from ops.runfolder import open_config
from store.errors import VergeError


def evaluate_command(
    run: Annotated[
        Path, typer.Argument(help="A run's TOML file or folder: problems, verifier, sampling.", show_default=False)
    ],
    model: Annotated[
        str | None, typer.Option(help="A Hugging Face folder, a snapshot's folder, or a hub id; model.path by default.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where every problem's counts are kept; evaluation.jsonl in the run folder. A .parquet file is "
            "written at the end, beside a .jsonl of the same name."
        ),
    ] = None,
    split: Annotated[Literal["held_out", "train"], typer.Option(help="Which of the run's problems.")] = "held_out",
    samples: Annotated[int, typer.Option(min=1, help="Completions of each problem.")] = 64,
    k: Annotated[str, typer.Option(help="The k of pass@k, comma-separated.")] = "1,8,64",
    against: Annotated[
        Path | None,
        typer.Option(help="An earlier --out, of the same problems: gains, newly solved and newly lost."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Also draw pass@k, and with --against each problem, into this .svg or .png file."),
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """pass@k of a model from samples: unbiased, with errors over problems, and paired against another model's.

    Stopped, it continues where it was: the same command samples only what is missing from --out.
    """
    ks = _ks(k, samples)
    config = open_config(run, overrides or ())
    from actors.problems import load_problems
    from ops.eval_plot import check_plot, draw
    from ops.eval_run import evaluate_model
    from ops.tally import (
        check_comparable,
        check_table,
        compare_tallies,
        problems_digest,
        read_tallies,
        report,
        write_table,
    )

    before = read_tallies(against) if against is not None else None
    problems = list(getattr(load_problems(config.problems), split))
    if not problems:
        raise VergeError(f"{run} has no {split} problems to evaluate on; set problems.{split}_count")
    out = out or config.run_folder / "evaluation.jsonl"
    # What cannot be compared, kept or drawn is refused before hours of sampling, not after.
    if before is not None:
        check_comparable(before, problems_digest(problems), ks)
    if plot is not None:
        check_plot(plot)
    if out.suffix == ".parquet":
        check_table(out)
    kept = out.with_suffix(".jsonl") if out.suffix == ".parquet" else out
    with _Bar(len(problems), quiet=as_json) as bar:
        subject, tallies = evaluate_model(config, model or config.model.path, problems, samples, kept, bar.show)
    if out != kept:
        write_table(out, subject, tallies)
    found = report(subject, tallies, ks) | {"out": str(out)}
    after = subject, {tally.id: tally for tally in tallies}
    if before is not None:
        found["against"] = compare_tallies(before, after, ks)
    if plot is not None:
        draw(plot, after, before)
        found["plot"] = str(plot)
    print(json.dumps(found, indent=2) if as_json else _text(found))


def _ks(text: str, samples: int) -> list[int]:
    try:
        ks = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise VergeError(f"--k is {text!r}, but must be numbers, as in 1,8,64") from None
    if ks[0] < 1 or ks[-1] > samples:
        raise VergeError(
            f"--k holds {ks[0] if ks[0] < 1 else ks[-1]}, but must be in [1, {samples}] (= --samples): "
            "pass@k cannot be estimated from fewer than k samples"
        )
    return ks


class _Bar:
    """A progress bar on stderr, where that is a terminal."""

    def __init__(self, total: int, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._progress = Progress(console=Console(stderr=True), disable=quiet)
        self._task = self._progress.add_task("problems", total=total)

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, done: int) -> None:
        """Move to `done`."""
        self._progress.update(self._task, completed=done)


def _text(found: dict[str, Any]) -> str:
    lines = [f"{found['model']} on {found['count']} problems, {found['samples']} completions each ({found['out']})"]
    lines += [f"pass@{row['k']:<5} {row['mean']:.3f} ± {row['se']:.3f}" for row in found["pass_at_k"]]
    lines.append(
        f"solved {found['solved']} · {found['distinct_right_answers']:.1f} distinct right answers a problem · "
        f"{found['mean_tokens']:.1f} tokens · entropy {found['entropy']:.2f} · truncated {found['truncated_share']:.1%}"
        f" · errors {found['error_share']:.1%}"
    )
    if compared := found.get("against"):
        lines.append("against the other, paired over problems:")
        lines += [
            f"pass@{row['k']:<5} {row['before']:.3f} → {row['after']:.3f}   {row['gain']:+.3f} ± {row['se']:.3f}"
            for row in compared["gains"]
        ]
        for name in ("newly_solved", "newly_lost"):
            changed = compared[name]
            sure = sum(row["chance"] is not None and row["chance"] < 0.01 for row in changed)
            lines.append(
                f"{name.replace('_', ' ')}: {len(changed)}; {sure} of them would be chance in less than 1 of 100 cases"
            )
    if "plot" in found:
        lines.append(f"drawn in {found['plot']}")
    return "\n".join(lines)
