"""The file of results: one line of JSON for every run that is done, from which all else is made."""

import json
import os
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ops.labs.settings import RunSettings
from store.errors import VergeError

LONGEST_LINE = 4096
"""Bytes; the file is kept beside the code."""
_PACKAGES = ("torch", "numpy", "transformers", "deepspeed")


def line_of(settings: RunSettings, figures: Mapping[str, Any]) -> str:
    """The line of a finished run: settings that differ from the defaults, versions, and figures of four digits."""
    return json.dumps(
        {"settings": key_of(settings), "versions": versions(), **_rounded(figures)}, separators=(",", ":")
    )


def key_of(settings: RunSettings) -> dict[str, Any]:
    """What tells a run from every other."""
    return settings.model_dump(exclude_defaults=True)


def append(path: Path, line: str) -> None:
    """Add a line, on disk before this returns."""
    data = line.encode() + b"\n"
    if len(data) > LONGEST_LINE:
        raise VergeError(f"the line of a run has {len(data)} bytes but must have ≤ {LONGEST_LINE}")
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[dict[str, Any]]:
    """All lines, `settings` as RunSettings; none where there is no file.

    Raises:
        VergeError: a line is not one of ours, with its number. A last line without an end was cut off, and is not read.
    """
    if not path.exists():
        return []
    found = []
    whole = path.read_text(encoding="utf-8").split("\n")[:-1]
    for number, text in enumerate(whole, 1):
        try:
            line = json.loads(text)
            found.append({**line, "settings": RunSettings(**line["settings"])})
        except (ValueError, KeyError, TypeError) as error:
            raise VergeError(f"{path} line {number} is not a run's result: {str(error).splitlines()[0]}") from error
    return found


def left_to_run(plan: Iterable[RunSettings], done: Iterable[Mapping[str, Any]]) -> list[RunSettings]:
    """The plan's runs without a line, in order, each once."""
    known = {_text(line["settings"]) for line in done}
    left = []
    for settings in plan:
        if (text := _text(settings)) not in known:
            known.add(text)
            left.append(settings)
    return left


def mend(path: Path) -> None:
    """Remove a last line that a killed process left without its end."""
    if path.exists() and (data := path.read_bytes()) and not data.endswith(b"\n"):
        path.write_bytes(data[: data.rfind(b"\n") + 1])


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide what a run computes."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in _PACKAGES}


def _text(settings: RunSettings) -> str:
    return json.dumps(key_of(settings), sort_keys=True)


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.4g}")
        case Mapping():
            return {name: _rounded(each) for name, each in value.items()}
        case list() | tuple():
            return [_rounded(each) for each in value]
    return value
