"""What a pipe gets of the status line."""

import io

from ops.progress import StatusLine


def shown(*lines: tuple[float, str]) -> list[str]:
    stream = io.StringIO()
    status = StatusLine(stream, every_s=5.0)
    for now_s, line in lines:
        status.show(line, now_s)
    return stream.getvalue().splitlines()


def test_a_pipe_gets_a_new_step_at_most_every_few_seconds() -> None:
    assert shown((0, "step 1 · 5/s"), (1, "step 2 · 5/s"), (6, "step 3 · 5/s")) == ["step 1 · 5/s", "step 3 · 5/s"]


def test_a_pipe_gets_the_same_step_again_only_once_a_minute() -> None:
    steps = [(float(second), f"step 1 · {second}/s") for second in range(0, 70, 6)]
    assert shown(*steps) == ["step 1 · 0/s", "step 1 · 60/s"]


def test_a_pipe_gets_a_line_without_figures_once_a_minute() -> None:
    assert shown((0, "starting"), (30, "starting"), (61, "starting")) == ["starting", "starting"]
