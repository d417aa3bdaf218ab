"""The rows of a dataset: JSONL and Parquet files, alone or in a folder as the hub's datasets are."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.hub import hub_folder
from store.errors import VergeError

SUFFIXES = (".jsonl", ".parquet")
SPLITS = {"train", "test", "validation", "valid", "val", "dev", "eval"}
ROWS_AT_ONCE = 1024
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/(?!.*\.(jsonl|parquet)$)[\w.-]+")


@dataclass(frozen=True, slots=True)
class Row:
    """One row, or why it is none, in a whole sentence. `place` is its file with its line or row, counted from 1."""

    place: str
    value: Any
    why: str = ""


def dataset_files(source: Path, split: str) -> list[Path]:
    """The files of a source, in order of their names: itself, or those in a folder, or in a dataset of the hub.

    Where files of a folder carry the names of splits (`train-00000-of-00001.parquet`, `test/x.jsonl`), only those of
    `split` are taken.

    Raises:
        VergeError: there is no such file, or the folder holds none that can be read.
    """
    if _HUB_ID.fullmatch(str(source)) and not source.exists():
        refusal = f"problems.source {source}: no such file or folder, and the hub gives no such dataset"
        source = hub_folder(str(source), [f"*{suffix}" for suffix in SUFFIXES], refusal, "dataset")
    if not source.is_dir():
        return [source]
    files = sorted(path for suffix in SUFFIXES for path in source.rglob(f"*{suffix}") if path.is_file())
    if not files:
        raise VergeError(f"problems.source {source} cannot be read: the folder has no .jsonl and no .parquet file")
    words = {path: set(re.split(r"[^a-z0-9]+", str(path.relative_to(source)).lower())) for path in files}
    named = set().union(*words.values()) & (SPLITS | {split})
    chosen = [path for path in files if split in words[path]] if named else files
    if not chosen:
        raise VergeError(
            f"problems.source {source} has no file of the split {split!r}, but of {', '.join(sorted(named))}; "
            "set problems.split"
        )
    return chosen


def columns_of(path: Path) -> list[str] | None:
    """The columns of a Parquet file; None for a JSONL file, where each line has its own.

    Raises:
        VergeError: it cannot be read.
    """
    return list(_parquet(path).schema_arrow.names) if path.suffix == ".parquet" else None


def rows(path: Path, columns: list[str] | None = None) -> Iterator[Row]:
    """Every row of a file; of a Parquet file only these columns are read. Empty lines of a JSONL file are skipped.

    Raises:
        VergeError: the file cannot be read.
    """
    return _parquet_rows(path, columns) if path.suffix == ".parquet" else _json_lines(path)


def _json_lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        place = f"{path} line {number}"
        try:
            yield Row(place, json.loads(line))
        except (ValueError, RecursionError) as error:
            yield Row(place, None, f"{place} is not JSON: {error}")


def _parquet_rows(path: Path, columns: list[str] | None) -> Iterator[Row]:
    number = 0
    try:
        for batch in _parquet(path).iter_batches(ROWS_AT_ONCE, columns=columns):
            for value in batch.to_pylist():
                number += 1
                yield Row(f"{path} row {number}", value)
    except (ValueError, OSError) as error:  # pyarrow's own errors are kinds of these
        raise VergeError(f"problems.source {path} cannot be read after row {number}: {error}") from None


def _parquet(path: Path) -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise VergeError(f"problems.source {path}: {error}; pip install 'verge-rl[parquet]'") from None
    try:
        return parquet.ParquetFile(path)
    except FileNotFoundError:
        raise _no_such(path) from None
    except (ValueError, OSError) as error:
        raise VergeError(f"problems.source {path} is not a Parquet file: {error}") from None


def _lines(path: Path) -> Iterator[str]:
    before = 0
    try:
        with path.open("rb") as file:
            for line in file:
                yield line.decode()
                before += len(line)
    except FileNotFoundError:
        raise _no_such(path) from None
    except UnicodeDecodeError as error:
        at = before + error.start
        raise VergeError(f"problems.source {path} is not UTF-8 text: {error.reason} at byte {at}") from None
    except OSError as error:
        raise VergeError(f"problems.source {path} cannot be read: {error.strerror}") from None


def _no_such(path: Path) -> VergeError:
    return VergeError(
        f"problems.source {path}: no such file, nor builtin:countdown, builtin:arithmetic or reasoning_gym:<dataset>"
    )
