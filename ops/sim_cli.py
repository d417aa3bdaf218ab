"""`verge sim`: play a scene of scripted actors, for load tests and to study schedules."""

import json
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from ops.options import AsJson
from store.errors import VergeError


def sim(
    actors: Annotated[int, typer.Option(help="Scripted actors, 1 to 1000.")] = 64,
    steps: Annotated[int, typer.Option(help="Learner steps.")] = 20,
    max_lag: Annotated[int, typer.Option(help="Largest lag that is trained on; 0 is synchronous.")] = 2,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Any field of the scene; `--fields` explains them."),
    ] = None,
    fields: Annotated[bool, typer.Option("--fields", help="Print the fields of a scene with their defaults.")] = False,
    as_json: AsJson = False,
) -> None:
    """Scripted actors and steps around the real store and the real learner loop: no model, real time.

    Prints the time to N samples and the bound beside it, the learner's idle share, and the lag at consumption.
    """
    from ops.sim_scene import Scene

    if fields:
        for name, field in Scene.model_fields.items():
            print(f"{name} = {field.default}\n    {' '.join((field.description or '').split())}")
        return
    given: dict[str, Any] = {"actors": actors, "steps": steps, "max_lag": max_lag}
    for setting in settings or ():
        name, separator, value = setting.partition("=")
        if not separator:
            raise VergeError(f"--set {setting!r}: write FIELD=VALUE, for example --set step_s=0.5")
        given[name] = value
    try:
        scene = Scene.model_validate(given)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))
        raise VergeError(f"verge sim: {where or 'scene'}: {fault['msg'].removeprefix('Value error, ')}") from None
    from ops.sim import simulate

    found = simulate(scene)
    print(json.dumps(found, indent=2) if as_json else _page(found))


def _page(found: dict[str, Any]) -> str:
    counters, lags = found["counters"], found["lag_histogram"]
    return "\n".join(
        [
            f"{found['samples']} samples in {found['seconds']:.1f} s; no schedule takes less than "
            f"{found['bound_s']:.1f} s ({found['over_bound']:.0%} of the time taken)",
            f"learner idle    {found['idle_share']:.1%}",
            f"lag when drawn  {' '.join(f'{lag}:{count}' for lag, count in lags.items())}  (versions:groups)",
            f"groups          {counters['committed']} committed, {counters['drawn']} drawn, {counters['expired']} "
            f"expired, {counters['zero_mass']} without mass; {counters['refunded']} tickets refunded",
            f"fleet           {found['crashes']} crashes; 99 % of commits within {found['commit_p99_ms']:.1f} ms",
            f"audit           {found['miscounted']} counts are wrong",
        ]
    )
