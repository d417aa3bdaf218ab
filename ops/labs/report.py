"""RESULTS.md: tables with n and spread, figures, and a verdict for each claim, from the lines alone."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ops.labs.cells import Cell, Result, Study
from ops.labs.choices import choices
from ops.labs.claims import Verdict, verdicts
from ops.labs.drawings import draw
from ops.labs.lines import read
from ops.labs.measures import KS
from ops.labs.names import correction_name, method_name
from ops.labs.plans import LONG_STEPS
from store.errors import VergeError

NAME = "RESULTS.md"
Column = tuple[str, Callable[[Cell], str]]


def write(results: Sequence[Path], folder: Path) -> str:
    """Make RESULTS.md and its figures in `folder` from files of results; returns the text.

    Raises:
        VergeError: there are no results, or a line is not a run's.
    """
    lines = [line for path in results for line in read(path)]
    if not lines:
        names = ", ".join(map(str, results))
        raise VergeError(f"{names}: no results there; `verge lab collapse --results FILE` makes some")
    folder.mkdir(parents=True, exist_ok=True)
    found = [Result(line["settings"], line) for line in lines]
    study, longer, easy = Study(found), Study(found, steps=LONG_STEPS), Study(found, "easy")
    judged = verdicts(study, longer, easy)
    figures = draw(study, easy, folder)
    text = (
        "\n".join(
            [
                *_head(lines, (study, longer, easy)),
                *_verdicts(judged),
                *_choices(study),
                *_figures(figures),
                *_tables(study),
                *_long(longer),
                *_long(easy),
            ]
        )
        + "\n"
    )
    (folder / NAME).write_text(text, encoding="utf-8")
    return text


def _head(lines: Sequence[dict[str, Any]], studies: Sequence[Study]) -> list[str]:
    used = [line["settings"] for line in lines]
    trained = [settings for settings in used if settings.steps and settings.method != "base"]
    versions = sorted({", ".join(f"{k} {v}" for k, v in line["versions"].items()) for line in lines})
    one = trained[0] if trained else used[0]
    seeds, bases, rates = (_listed(values) for values in (
        (s.seed for s in trained), (s.base for s in used), (s.lr for s in trained)
    ))  # fmt: skip
    sizes = f"{one.groups} problems × {one.size} completions a step"
    lengths = " or ".join(f"{steps}" for steps in sorted({study.steps for study in studies if len(study)}))
    left_out = len(trained) - sum(len(study) for study in studies)
    return [
        "# What the diversity-collapse laboratory found",
        "",
        "Made by `verge lab report` from its files of results; not edited by hand. How it is measured: README.md.",
        "",
        f"{len(trained)} runs; seeds {seeds}; bases {bases}; learning rates {rates}; {sizes}, {lengths} steps"
        + (f"; {left_out} runs of other lengths are not shown" if left_out else "")
        + ".",
        f"Versions: {'; '.join(versions)}.",
        "",
        "Every figure is of held-out problems that neither training nor the choice of a learning rate has seen, ±"
        " standard deviation over n runs (bases × seeds); a method is shown at the rate that is best for it on the"
        " choosing half. What was not run is left out.",
        "",
    ]


def _verdicts(judged: Sequence[Verdict]) -> list[str]:
    found = ["## Verdicts", ""]
    for verdict in judged:
        found += [f"**{verdict.claim}**: {verdict.status}.", *(f"- {line}" for line in verdict.because), ""]
    return found


def _choices(study: Study) -> list[str]:
    found = choices(study)
    return ["## Settings", "", *(f"- {line}" for line in found), ""] if found else []


def _figures(figures: Sequence[tuple[str, str]]) -> list[str]:
    return [line for name, caption in figures for line in (f"![{caption}]({name})", "", f"*{caption}*", "")]


def _tables(study: Study) -> list[str]:
    cells = list(study.cells.values())
    found: list[str] = []
    if study.bases:
        found += ["## Bases", "", *_table(_bases(study), study), ""]
    for lag in sorted({cell.kind.lag for cell in cells}):
        of_lag = [cell for cell in cells if cell.kind.lag == lag]
        found += [
            f"## {'Fresh rollouts' if lag == 0 else f'Rollouts {lag} versions old'}",
            "",
            *_table(of_lag, study),
            "",
        ]
        found += ["On the problems that were trained on:", "", *_table(of_lag, study, "train"), ""]
    return found


def _long(study: Study) -> list[str]:
    if not study.cells:
        return []
    cells = list(study.cells.values())
    task = " on easy problems" if cells[0].kind.task == "easy" else ""
    return [f"## Runs of {study.steps} steps{task}", "", *_table([*_bases(study), *cells], study), ""]


def _bases(study: Study) -> list[Cell]:
    return [Cell(run.settings, run.settings.lr, (run,), ()) for run in study.bases.values()]


def _table(cells: Iterable[Cell], study: Study, part: str = "report") -> list[str]:
    def figure(name: str, of: Callable[[Result], float], digits: int = 3) -> Column:
        return name, lambda cell: _with_spread(cell, of, digits)

    def at(k: int, of: str) -> Callable[[Result], float]:
        return lambda run: run.at(k, part, of)

    given = list(cells)
    hard = all(run.part(part)["hard_problems"] for cell in given for run in cell.runs)
    stale = (
        (
            figure("ESS", lambda run: run.steps("ess")),
            figure("KL(μ‖π)", lambda run: run.steps("kl"), 4),
            figure("clipped −", lambda run: run.steps("clip_share_negative")),
        )
        if any(cell.kind.lag for cell in given) and part == "report"
        else ()
    )
    columns: list[Column] = [
        ("method", lambda cell: method_name(cell.kind) if cell.rates else f"base {cell.kind.base}"),
        *([("correction", lambda cell: correction_name(cell.kind))] if any(cell.kind.lag for cell in given) else []),
        ("rate (of)", lambda cell: f"{cell.rate:g} ({len(cell.rates)})" if cell.rates else ""),
        ("n", lambda cell: str(cell.n)),
        *(figure(f"@{k}", at(k, "pass")) for k in KS),
        figure("mean", lambda run: run.mean_over_k(part)),
        *((figure(f"hard @{k}", at(k, "hard")) for k in (16, 256)) if hard else ()),
        figure("distinct", lambda run: run.part(part)["distinct"], 1),
        figure("new", lambda run: run.part(part)["new"], 0),
        figure("lost", lambda run: run.part(part)["lost"], 0),
        figure("entropy", lambda run: run.entropy, 2),
        *stale,
        ("collapsed", lambda cell: f"{sum(study.collapsed(run) for run in cell.runs)}" if cell.rates else ""),
    ]
    rows = [[render(cell) for _, render in columns] for cell in given]
    return ["|".join(["", *row, ""]) for row in ([name for name, _ in columns], ["---"] * len(columns), *rows)]


def _with_spread(cell: Cell, of: Callable[[Result], float], digits: int) -> str:
    spread = cell.spread(of)
    return f"{cell.mean(of):.{digits}f}" + ("" if spread is None else f"±{spread:.{digits}f}")


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in sorted(set(values)))
