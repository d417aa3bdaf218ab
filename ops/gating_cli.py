"""`verge gating`: the mathematics at the command line, as tables or JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from store.errors import VergeError

app = typer.Typer(no_args_is_help=True, help="Advantages, gates and posteriors: what the methods do, as numbers.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
GroupSize = Annotated[int, typer.Option(help="Completions in a group, G.")]
SolveRate = Annotated[float, typer.Option("--p", help="Solve rate of the base model, in (0, 1).", show_default=False)]


@contextmanager
def refusals() -> Iterator[None]:
    """What gating refuses came from the command line: one line, not a traceback."""
    try:
        yield
    except ValueError as error:
        raise VergeError(str(error)) from error


def _numbers(option: str, text: str) -> list[float]:
    """'0.05,.2' or '0..8' (whole numbers, both ends) as numbers."""
    try:
        first, dots, last = text.partition("..")
        if dots:
            return [float(n) for n in range(int(first), int(last) + 1)]
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise VergeError(f"{option} is {text!r} but must be numbers such as .05,.2 or a range such as 0..8") from None


def _parameters(pairs: Sequence[str]) -> dict[str, Any]:
    """['k=4', 'inner=maxrl'] as a mapping; numbers become int or float."""
    params: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise VergeError(f"--param is {pair!r} but must be NAME=VALUE, such as k=4")
        value: Any = text
        for number in (int, float):
            try:
                value = number(text)
                break
            except ValueError:
                continue
        params[key] = value
    return params


def _show(answer: Mapping[str, Any] | Sequence[Mapping[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    rows = [answer] if isinstance(answer, Mapping) else list(answer)
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{value:.6g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)


@app.command()
def atlas(
    out: Annotated[Path, typer.Argument(help="Where to draw: a .png, .svg or .html file.", show_default=False)],
    group_size: GroupSize = 8,
) -> None:
    """Draw every advantage's masses and slope on one sheet, equalised, and FADE's path as training moves."""
    from ops.atlas import draw

    with refusals():
        draw(out, group_size)
    print(out)


@app.command()
def slope(
    advantage: Annotated[str, typer.Option(help="Its name, or package.module:Class of your own.", show_default=False)],
    param: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A parameter; repeat for more.")] = None,
    group_size: GroupSize = 8,
    p: Annotated[str, typer.Option(help="Solve rates, such as .05,.2.")] = ".05,.2,.5,.8",
    as_json: AsJson = False,
) -> None:
    """Masses m_S, m_F and surrogate slope F'(p) of an advantage."""
    from gating import framework
    from gating.advantages import make

    with refusals():
        made = make(advantage, **_parameters(param or ()))
        rates = _numbers("--p", p)
        up, down = framework.masses(made, rates, group_size)
        slopes = framework.slope(made, rates, group_size)
    columns = zip(rates, up.tolist(), down.tolist(), slopes.tolist(), strict=True)
    _show([dict(zip(("p", "m_success", "m_failure", "slope"), row, strict=True)) for row in columns], as_json)


@app.command()
def fade(
    solve_rate: Annotated[float, typer.Option(help="Mean solve rate p̂, in [0, 1].", show_default=False)],
    entropy: Annotated[float, typer.Option(help="Mean token entropy Ĥ, nats.", show_default=False)],
    target_entropy: Annotated[float, typer.Option(help="Its target H*, nats.", show_default=False)],
    mode: Annotated[str, typer.Option(help="absolute (the paper's) or relative.")] = "absolute",
    as_json: AsJson = False,
) -> None:
    """FADE's α and δ at a moment of training."""
    from gating import fade as formulas

    with refusals():
        answer = {
            "alpha": float(formulas.alpha(solve_rate)),
            "delta": float(formulas.delta(entropy, target_entropy, mode=mode)),  # type: ignore[arg-type]
        }
    _show(answer, as_json)


@app.command()
def bbg(
    group_size: GroupSize = 8,
    k: Annotated[int, typer.Option(help="Tries that pass@k allows.")] = 16,
    tau: Annotated[float, typer.Option(help="Closed where utility < tau · (G + 1).")] = 0.01,
    successes: Annotated[str | None, typer.Option(help="Such as 0..8 or 0,1,2. [default: 0..G]")] = None,
    as_json: AsJson = False,
) -> None:
    """Boundary utility, gate and posterior pass@k of one group, in the paper's form."""
    import numpy as np

    from gating import bbg as formulas
    from gating.checks import counts

    with refusals():
        c, G = counts(_numbers("--successes", successes or f"0..{group_size}"), group_size)
        A, B = c + 1.0, G - c + 1.0
        columns = zip(
            c.astype(np.int64).tolist(),
            formulas.utility(A, B, k).tolist(),
            formulas.gate_open(A, B, k, tau, group_size).tolist(),
            formulas.posterior_pass_at_k(A, B, k).tolist(),
            strict=True,
        )
    names = ("successes", "utility", "gate_open", "pass_at_k")
    _show([dict(zip(names, row, strict=True)) for row in columns], as_json)


@app.command()
def beta(
    p: SolveRate,
    mu: Annotated[float, typer.Option(help="Solve rate to reach, in (p, 1).", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """The KL weight β (nats of sequence KL) that takes a base solve rate p to μ, and what it costs."""
    from gating import filtered

    with refusals():
        answer = {
            "beta": float(filtered.beta_of(p, mu)),
            "kappa": float(filtered.kappa(mu, p)),
            "kl_filtered_tilted": float(filtered.kl_filtered_tilted(mu)),
            "tv": float(filtered.tv(mu)),
        }
    _show(answer, as_json)


@app.command()
def mu(
    p: SolveRate,
    beta: Annotated[float, typer.Option(help="KL weight β, nats of sequence KL, > 0.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """The solve rate μ that the KL weight β leads to from a base solve rate p."""
    from gating import filtered

    with refusals():
        answer = {"mu": float(filtered.mu_of(p, beta))}
    _show(answer, as_json)


@app.command()
def passk(
    n: Annotated[int, typer.Option(help="Samples.", show_default=False)],
    c: Annotated[int, typer.Option(help="Correct among them.", show_default=False)],
    k: Annotated[str, typer.Option(help="Tries, such as 1,16,64.")] = "1",
    as_json: AsJson = False,
) -> None:
    """The unbiased estimate of pass@k."""
    from gating.passk import pass_at_k

    with refusals():
        tries = _numbers("--k", k)
        values = pass_at_k(n, c, tries).tolist()
    _show([{"k": int(t), "pass_at_k": value} for t, value in zip(tries, values, strict=True)], as_json)
