"""What a model made of each problem of a set: counted as it is sampled, kept line by line, compared with another's."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from gating import passk
from ops.runfolder import write_atomically
from store.errors import VergeError
from store.evaluations import Tally
from store.scores import changed, gains, scores
from store.wire import Problem

FORMAT = 1
_SUBJECT = b"verge.subject"


@dataclass(frozen=True, slots=True)
class Subject:
    """What was evaluated on what, and how: two evaluations with one `problems` can be compared."""

    model: str
    weights: str
    problems: str
    count: int
    samples: int
    temperature: float
    max_completion_tokens: int
    format: int = FORMAT


def problems_digest(problems: Iterable[Problem]) -> str:
    """SHA-256 over ids, prompts, verifiers and answers, whatever their order."""
    lines = sorted(json.dumps([p.id, p.prompt, p.verifier, p.answer], sort_keys=True) for p in problems)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class TallyFile:
    """An evaluation on disk: a line that says of what, then one for each problem that is done.

    absent ──open──▶ begun ──add…──▶ begun ──add──▶ complete
                       ▲── killed, opened again ──┘ (a line that was cut short is sampled again)
    """

    def __init__(self, path: Path, subject: Subject) -> None:
        """Open for more, or begin. VergeError when the file is not this evaluation's."""
        self.done: dict[str, Tally] = {}
        if path.exists() and path.stat().st_size:
            found, kept = read_tallies(path)
            ours, theirs = asdict(subject), asdict(found)
            if differing := [name for name in ours if ours[name] != theirs[name]]:
                name = differing[0]
                raise VergeError(
                    f"{path} holds an evaluation with {name} = {theirs[name]}, this one has {ours[name]}; "
                    "name another file with --out"
                )
            # Where the verifier or the engine failed, the problem is tried again: by now it may be mended.
            self.done = {name: tally for name, tally in kept.items() if not tally.errors}
        path.parent.mkdir(parents=True, exist_ok=True)
        kept_lines = (asdict(subject), *map(asdict, self.done.values()))  # without the one that was cut short
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept_lines))
        self._file: TextIO = path.open("a", encoding="utf-8")

    def add(self, tally: Tally) -> None:
        """Keep one problem's tally, on disk at once."""
        self.done[tally.id] = tally
        self._file.write(json.dumps(asdict(tally)) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def write_table(path: Path, subject: Subject, tallies: Sequence[Tally]) -> None:
    """One row per problem as a Parquet file, whose metadata says of what: `read_tallies` reads it back.

    Raises:
        VergeError: pyarrow is not installed, or the file cannot be written.
    """
    pa, parquet = _arrow(path)
    table = pa.Table.from_pylist([asdict(tally) for tally in tallies])
    table = table.replace_schema_metadata({_SUBJECT: json.dumps(asdict(subject))})
    temporary = path.with_name(path.name + ".tmp")
    try:
        parquet.write_table(table, temporary)
        temporary.replace(path)
    except OSError as error:
        raise VergeError(f"{path} cannot be written: {error.strerror or error}") from None


def check_table(path: Path) -> None:
    """Refuse, before anything is sampled, what `write_table` would refuse."""
    _arrow(path)


def _arrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise VergeError(f"{path}: {error}; pip install 'verge-rl[parquet]'") from None
    return pyarrow, parquet


def read_tallies(path: Path) -> tuple[Subject, dict[str, Tally]]:
    """What `TallyFile` or `write_table` wrote, by problem id; a last line that was cut short is left out.

    Raises:
        VergeError: it is no such file, or of another format.
    """
    try:
        if path.suffix == ".parquet":
            table = _arrow(path)[1].read_table(path)
            head = json.loads(table.schema.metadata[_SUBJECT])
            return _subject(head), {row["id"]: Tally(**row) for row in table.to_pylist()}
        lines = path.read_text(encoding="utf-8").split("\n")
        subject = _subject(json.loads(lines[0]))
        rows = [json.loads(line) for line in lines[1:-1]]  # after the last newline: nothing, or half a line
        tallies = {row["id"]: Tally(**row) for row in rows}
    except OSError as error:
        raise VergeError(f"{path}: {error.strerror or error}") from None
    except (ValueError, TypeError, AttributeError, KeyError):
        raise VergeError(f"{path} is not an evaluation that `verge eval` wrote") from None
    return subject, tallies


def _subject(head: dict[str, Any]) -> Subject:
    if head.get("format") != FORMAT:
        raise ValueError
    return Subject(**head)


def report(subject: Subject, tallies: Sequence[Tally], ks: Sequence[int]) -> dict[str, Any]:
    """pass@k with standard errors over problems, and what the completions were like.

    Raises:
        VergeError: a problem has fewer judged completions than the largest k.
    """
    worst = min(tallies, key=lambda tally: tally.n)
    if worst.n < max(ks):
        raise VergeError(
            f"problem {worst.id} has only {worst.n} judged completions ({worst.errors} errors), too few for "
            f"pass@{max(ks)}; mend the verifier and run the same command again, or lower --k"
        )
    return asdict(subject) | scores(tallies, ks)


def check_comparable(evaluated: tuple[Subject, Mapping[str, Tally]], problems: str, ks: Sequence[int]) -> None:
    """Refuse an evaluation that says nothing about these k, or is of other problems than those of the digest.

    Raises:
        VergeError: what is wrong with it, in one line.
    """
    subject, tallies = evaluated
    if subject.problems != problems:
        raise VergeError(
            f"the evaluation of {subject.model} is of {subject.count} other problems: their difference would mean "
            "nothing; evaluate both models on one run's problems, of one split"
        )
    if len(tallies) < subject.count:
        raise VergeError(
            f"the evaluation of {subject.model} has {len(tallies)} of {subject.count} problems; run it to its end"
        )
    if fewer := [tally for tally in tallies.values() if tally.n < max(ks)]:
        raise VergeError(
            f"the evaluation of {subject.model} has {fewer[0].n} judged completions of problem {fewer[0].id}, too "
            f"few for pass@{max(ks)}; lower --k"
        )


def compare_tallies(
    before: tuple[Subject, Mapping[str, Tally]], after: tuple[Subject, Mapping[str, Tally]], ks: Sequence[int]
) -> dict[str, Any]:
    """`after` against `before` on the same problems: paired gains, and what is newly solved and newly lost.

    Beside each newly solved or lost problem is the chance of that if nothing had changed (2606.15455, the noise test),
    where both have the same number of completions.

    Raises:
        VergeError: they are not of the same problems, or one is not complete.
    """
    check_comparable(before, after[0].problems, ks)
    check_comparable(after, before[0].problems, ks)
    ids = sorted(after[1])
    old, new = [before[1][i] for i in ids], [after[1][i] for i in ids]
    solved, lost = changed(old, new)
    return {
        "gains": gains(old, new, ks),
        "newly_solved": [_changed(new[i], old[i]) for i in solved],
        "newly_lost": [_changed(old[i], new[i]) for i in lost],
    }


def _changed(solved: Tally, unsolved: Tally) -> dict[str, Any]:
    chance = float(passk.second_half_only(solved.n, solved.correct)) if solved.n == unsolved.n else None
    return {"id": solved.id, "correct": solved.correct, "n": solved.n, "chance": chance}
