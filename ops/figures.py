"""One form for figures: every bench and lab prints its checks as a table, or as one JSON object."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def check(name: str, value: float, target: float, ok: bool) -> dict[str, Any]:
    """One row: a figure, what it is held against, and whether it holds. The unit is in the name."""
    return {"name": name, "value": value, "target": target, "ok": ok}


def at_most(name: str, value: float, target: float) -> dict[str, Any]:
    """A figure that may not be above its target."""
    return check(name, value, target, value <= target)


def print_figures(figures: Mapping[str, Any], as_json: bool) -> int:
    """Print a bench's or lab's result on stdout.

    Args:
        figures: has `checks`, a list of `check(…)`, beside whatever else it has.
        as_json: one JSON object instead of a table.

    Returns:
        The exit status: 1 when a check is not ok.
    """
    checks = figures["checks"]
    if as_json:
        print(json.dumps(figures, indent=2))
    else:
        table = Table("check", "value", "target", "ok")
        for row in checks:
            table.add_row(row["name"], f"{row['value']:.6g}", f"{row['target']:.6g}", "yes" if row["ok"] else "NO")
        Console(file=sys.stdout).print(table)
    return 0 if all(row["ok"] for row in checks) else 1
