"""What is shown of a run: lines in a pipe, a panel that is redrawn on a terminal."""

import fcntl
import io
import os
import re
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

from rich.cells import cell_len

from ops.children import Child
from ops.panel import panel
from ops.progress import Look, StatusLines, progress
from tests.ops.serving import ROOT

DYNAMICS = {
    "step": 1, "reward": 0.25, "solve_rate": 0.5, "entropy": 0.7, "alpha": 2.5, "delta": 1.0, "active_problems": 59,
    "lag_mean": 1.75, "lag_max": 3, "idle_share": 0.5,
}  # fmt: skip


def look(step: int | None, per_s: float = 5.0, **said: str) -> Look:
    dynamics = {} if step is None else DYNAMICS | {"step": step}
    processes = {"actor-0": "running", "actor-1": "starts again"}
    beats = {"actor-0": {"engine": "vllm", "version": 7, "tickets": 24, "tokens_per_s": 812.5, "completions": 5184,
                         "errors": 3}}  # fmt: skip
    return Look("demo", 150, 4, dynamics, per_s, processes, beats, said)


def shown(*looks: tuple[float, Look]) -> list[str]:
    stream = io.StringIO()
    lines = StatusLines(stream)
    for now_s, seen in looks:
        lines.show(seen, now_s)
    return stream.getvalue().splitlines()


def test_a_pipe_gets_a_new_step_at_most_every_few_seconds() -> None:
    first, second = shown((0, look(1)), (1, look(2)), (6, look(3)))
    assert first == (
        "step 1/150 · reward 0.250 · p̂ 0.500 · Ĥ 0.70 · α 2.50 · δ 1.00 · active 59 · lag 1.8/3 · learner idle 50% · "
        "5 rollouts/s"
    )
    assert second.startswith("step 3/150 ")


def test_a_pipe_gets_the_same_step_again_only_once_a_minute() -> None:
    steps = [(float(second), look(1, per_s=second)) for second in range(0, 70, 6)]
    assert [line.rpartition(" · ")[2] for line in shown(*steps)] == ["0 rollouts/s", "60 rollouts/s"]


def test_a_pipe_gets_a_line_without_figures_once_a_minute() -> None:
    line = "starting: 1 actors load the model, the learner waits for the first groups"
    assert shown((0, look(None)), (30, look(None)), (61, look(None))) == [line, line]


def test_a_stream_that_is_no_terminal_gets_lines() -> None:
    assert isinstance(progress(io.StringIO()), StatusLines)


SCRIPT = """
import sys
from ops.progress import progress
from tests.ops.test_progress import look
out = progress()
out.say("begun in /some/folder")
out.show(look(None, learner="have 0 of 64 groups for step 1, because no actor has started yet"), 0.0)
out.show(look(11, learner="have 3 of 64 groups for step 12, because 8 tickets are out, 8 of them with an actor"), 0.1)
out.say("actor-1 was killed by SIGKILL; starting it again in 1 s")
out.show(look(12), 0.2)
out.finish()
print("the summary", file=sys.stderr)
"""


def in_terminal(columns: int, code: str, **environment: str) -> str:
    """All that a process writes to the terminal that is its stderr."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    settings = os.environ | {"TERM": "xterm-256color", "NO_COLOR": "1"} | environment
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=theirs, env=settings)
    os.close(theirs)
    written = b""
    with suppress(OSError):  # nobody has its other end any more
        while part := os.read(ours, 65536):
            written += part
    os.close(ours)
    assert process.wait(60) == 0, written.decode()
    return written.decode()


def screen(written: str, columns: int) -> list[str]:
    """What a terminal shows in the end: it knows the lines, returns, moves up and erasures that the panel uses."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", written):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part.startswith("\x1b["):
            match part[-1]:
                case "A":
                    row -= int(part[2:-1] or 1)
                case "K":
                    lines[row] = "" if part[2:-1] == "2" else lines[row][:column]
                case "l" | "h" | "m":
                    pass
                case other:
                    raise AssertionError(f"the panel used {part!r} ({other})")
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    assert all(cell_len(line) <= columns for line in lines), "nothing runs over the edge"
    return [line.rstrip() for line in lines]


def test_a_terminal_shows_the_newest_look_in_place_below_what_was_said() -> None:
    seen = screen(in_terminal(100, SCRIPT), 100)
    text = "\n".join(seen)
    assert seen[0] == "begun in /some/folder"
    assert seen[1] == "actor-1 was killed by SIGKILL; starting it again in 1 s"
    assert seen[2].startswith("╭─ demo · step 12/150 ─")
    assert text.count("demo · step") == 1, "it is redrawn, not repeated"
    assert re.search(r"reward 0\.250 .* lag 1\.8 of 4 .* learner idle 50%", text.replace("\n", " "))
    assert re.search(r"tokens/s 81[23]", text.replace("\n", " "))
    (row,) = [line for line in seen if "actor-0" in line]
    assert row.strip("│ ").split() == ["actor-0", "7", "24", "812", "5184", "3"]
    assert "actor-1 starts again" in text
    assert "have 3 of 64" not in text, "it no longer waits"
    assert seen[-2:] == ["the summary", ""]


def test_a_process_that_waits_has_its_reason_in_the_panel_cut_to_a_narrow_terminal() -> None:
    code = SCRIPT.replace("out.show(look(12), 0.2)", "")
    seen = screen(in_terminal(60, code), 60)
    (reason,) = [line for line in seen if "have 3 of 64" in line]
    assert reason.startswith("│ learner: have 3 of 64 groups for step 12, because")
    assert reason.endswith("… │")


def test_a_terminal_that_cannot_redraw_gets_lines() -> None:
    written = in_terminal(100, SCRIPT, TERM="dumb")
    assert "\x1b" not in written
    assert "step 11/150 · reward" not in written, "too soon after the first line"
    assert written.splitlines()[1].startswith("starting: 1 actors")


def test_an_actor_that_has_not_begun_is_said_to_load_its_engine_and_one_that_evaluates_so_too() -> None:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=100)
    console.print(panel(Look("demo", 150, 4, {}, 0.0, {"actor-0": "running"})))
    stream = console.file
    assert isinstance(stream, io.StringIO)
    assert "actor-0 loads its engine" in stream.getvalue()
    beats = {"actor-0": {"engine": "vllm", "version": 50, "evaluating": 50}}
    console.print(panel(Look("demo", 150, 4, {}, 0.0, {"actor-0": "running"}, beats)))
    assert "actor-0 evaluates version 50" in stream.getvalue()


def test_what_a_process_has_just_said_is_its_last_line_since_its_start(tmp_path: Path) -> None:
    child = Child("actor-0", ["actor", "run"], tmp_path / "log")
    assert child.just_said() == ""
    child.log.write_text("actor: of an earlier process\n")
    child.log_began = child.log.stat().st_size
    assert child.just_said() == ""
    with child.log.open("a") as log:
        log.write("actor: loads\nactor: idle for 12 s\nINFO something of vLLM\n")
    assert child.just_said() == "idle for 12 s"
    os.utime(child.log, (time.time() - 60, time.time() - 60))
    assert child.just_said() == "", "what was said a minute ago no longer holds"
