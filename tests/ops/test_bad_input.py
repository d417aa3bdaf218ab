"""Bad input gets one line that says what to change, a non-zero exit, and loses nothing."""

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ops.children import Child
from ops.cli import main
from ops.config import load_config
from ops.runfolder import enter_run_folder, open_config, run_lock, set_aside
from ops.tally import Subject, TallyFile
from store.errors import VergeError
from store.evaluations import Tally

ABSENT = "redis://127.0.0.1:1"
CONFIG = """
name = "bad"
folder = "{folder}"
[model]
path = "{model}"
[problems]
source = "{source}"
[sampling]
max_completion_tokens = 8
[actor]
context_tokens = {context}
[learner]
steps = 1
"""
PROBLEM = {"id": "p1", "prompt": "1234=10:", "verifier": "countdown", "answer": {"digits": "1234", "target": 10}}


def refusal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """The one line that `verge …` leaves when it refuses."""
    monkeypatch.setattr(sys, "argv", ["verge", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    message = ended.value.code if isinstance(ended.value.code, str) else capsys.readouterr().err
    assert ended.value.code not in (0, None)
    assert isinstance(message, str)
    assert "Traceback" not in message
    return message


def write(folder: Path, model: Path | str, lines: list[str] | None = None, context: int = 32, source: str = "") -> str:
    problems = folder / "problems.jsonl"
    if lines is not None:
        problems.write_text("\n".join(lines))
    config = folder / "run.toml"
    config.write_text(CONFIG.format(folder=folder / "run", model=model, source=source or problems, context=context))
    return str(config)


def builtin(folder: Path, model: Path | str, context: int = 32) -> str:
    return write(folder, model, context=context, source="builtin:countdown")


def test_a_wrong_usage_exits_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["verge", "up", "x.toml", "--no-such-option"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2


def test_an_unknown_model_folder_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    message = refusal(capsys, monkeypatch, "up", builtin(tmp_path, "/no/such/model"))
    assert "/no/such/model" in message
    assert message.count("\n") == 0


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "no problems"),
        ([json.dumps(PROBLEM), json.dumps(PROBLEM)], "p1"),
        ([json.dumps(PROBLEM), "{broken"], "2"),
        ([json.dumps({**PROBLEM, "verifier": "countdwn"})], "countdown"),
    ],
    ids=["no problems", "duplicate ids", "malformed line", "unknown verifier"],
)
def test_problems_that_cannot_be_used_are_named(
    lines: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tiny_model: Path,
) -> None:
    message = refusal(capsys, monkeypatch, "up", write(tmp_path, tiny_model, lines))
    assert expected in message
    assert "problems.jsonl" in message
    assert message.count("\n") == 0


def test_a_prompt_that_does_not_fit_is_named_with_the_arithmetic(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_model: Path
) -> None:
    message = refusal(capsys, monkeypatch, "up", builtin(tmp_path, tiny_model, context=12))
    assert "8 prompt tokens" in message
    assert "16" in message


def test_a_length_penalty_beside_a_problem_with_a_limit_of_its_own_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_model: Path
) -> None:
    lines = [json.dumps(PROBLEM), json.dumps(PROBLEM | {"id": "p2", "max_completion_tokens": 4})]
    config = write(tmp_path, tiny_model, lines)
    message = refusal(capsys, monkeypatch, "up", config, "--set", "objective.overlong_cache=2")
    assert "problem p2 has a max_completion_tokens of its own" in message


def test_a_context_beyond_the_models_positions_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_model: Path
) -> None:
    message = refusal(capsys, monkeypatch, "up", builtin(tmp_path, tiny_model, context=4096))
    assert "64 positions" in message


def test_evaluations_without_a_problem_that_is_held_out_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_model: Path
) -> None:
    changes = ["--set", "evaluation.every=5", "--set", "problems.held_out_count=0", "--set", f"store.url={ABSENT}"]
    for command in ("up", "learner"):
        message = refusal(capsys, monkeypatch, command, builtin(tmp_path, tiny_model), *changes)
        assert "evaluation.every is 5, but builtin:countdown holds out no problem to measure with" in message
        assert message.count("\n") == 0


def evaluated(folder: Path, count: int = 2, n: int = 8) -> Path:
    """An evaluation of other problems than any here."""
    path = folder / "other.jsonl"
    file = TallyFile(path, Subject("a-model", "w", "another digest", count, n, 1.0, 8))
    file.add(Tally("p1", n, 1, 1, 0, 0, 5 * n, 2.5 * n))
    file.close()
    return path


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--against", "other.jsonl"], "the evaluation of a-model is of 2 other problems"),
        (["--against", "absent.jsonl"], "absent.jsonl: No such file"),
        (["--samples", "8", "--k", "1,16"], "--k holds 16, but must be in [1, 8] (= --samples)"),
        (["--k", "one"], "--k is 'one', but must be numbers"),
        (["--plot", "gains.gif"], "gains.gif ends in .gif but must end in .png or .svg"),
        (["--plot", "nowhere/gains.svg"], "the folder nowhere of gains.svg does not exist"),
        (["--set", "problems.held_out_count=0"], "has no held_out problems to evaluate on"),
    ],
)
def test_an_evaluation_that_would_mislead_is_refused_before_anything_is_sampled(
    options: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    config = builtin(tmp_path, "/no/such/model")  # which would be refused first, if it were looked for
    evaluated(tmp_path)
    monkeypatch.chdir(tmp_path)
    message = refusal(capsys, monkeypatch, "eval", config, *options)
    assert expected in message
    assert message.count("\n") == 0


@pytest.mark.parametrize("verifier", ["exact", "countdown", "math"])
def test_a_problem_without_its_reference_answer_is_named_with_its_line(
    verifier: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tiny_model: Path,
) -> None:
    without = {name: value for name, value in (PROBLEM | {"verifier": verifier}).items() if name != "answer"}
    config = write(tmp_path, tiny_model, [json.dumps(without), json.dumps(PROBLEM | {"id": "p2"})])
    message = refusal(capsys, monkeypatch, "eval", config, "--set", "problems.held_out_count=1")
    assert "problems.jsonl line 1" in message
    assert "answer" in message
    assert message.count("\n") == 0


def test_a_port_in_use_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_model: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = refusal(capsys, monkeypatch, "up", builtin(tmp_path, tiny_model), "--set", f"store.port={port}")
    assert str(port) in message
    assert "store.port" in message


def test_a_run_folder_that_cannot_be_written_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_model: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    message = refusal(
        capsys, monkeypatch, "up", builtin(tmp_path, tiny_model), "--set", f"folder={tmp_path / 'file' / 'run'}"
    )
    assert "file/run" in message


def test_a_run_folder_in_use_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_model: Path
) -> None:
    with run_lock(tmp_path / "run"):
        message = refusal(capsys, monkeypatch, "up", builtin(tmp_path, tiny_model))
    assert f"in use by process {os.getpid()}; `verge down" in message


def test_state_of_a_folder_that_is_no_run_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "not a run folder" in refusal(capsys, monkeypatch, "state", "summary", str(tmp_path))


def test_a_changed_field_is_refused_by_name_and_the_old_run_can_be_set_aside(tmp_path: Path) -> None:
    config = load_config(Path(builtin(tmp_path, "tiny")))
    assert not enter_run_folder(config)
    assert enter_run_folder(config)
    changed = load_config(Path(builtin(tmp_path, "tiny")), ["gating.k=32"])
    with pytest.raises(VergeError, match=r"gating\.k = 8, but it is now 32"):
        enter_run_folder(changed)
    aside = set_aside(config.run_folder)
    assert aside == config.run_folder.with_name("run.1")
    assert not enter_run_folder(changed)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("name=.", "name is '.':"),
        ("name=..", "name is '..':"),
        ("learner.lr=inf", "learner.lr is inf:"),
        ("evaluation.k=[0]", "evaluation.k.0 is 0:"),
        ("evaluation.k=[]", "evaluation.k is []"),
        ("seed=99999999999999999999", "seed is 99999999999999999999:"),
    ],
)
def test_a_value_that_cannot_work_is_refused_before_anything_is_made(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in refusal(capsys, monkeypatch, "up", builtin(tmp_path, "tiny"), "--fresh", "--set", setting)
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


@pytest.mark.parametrize("summary", [".", "run.toml/summary.json"])
def test_a_summary_that_cannot_be_written_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, summary: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "cannot be written" in refusal(
        capsys, monkeypatch, "up", builtin(tmp_path, "/no/such/model"), "--summary", summary
    )


def test_a_start_over_that_is_refused_leaves_the_old_run_where_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    enter_run_folder(load_config(Path(builtin(tmp_path, "tiny"))))
    assert "/no/such" in refusal(capsys, monkeypatch, "up", builtin(tmp_path, "/no/such/model"), "--fresh")
    assert (folder / "config.json").exists()
    assert not (tmp_path / "run.1").exists()


def test_a_run_folder_is_where_it_is_now_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    enter_run_folder(load_config(Path(builtin(tmp_path, "tiny"))))
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    assert open_config(moved).run_folder == moved
    (moved / "config.json").write_text('{"name": ')
    with pytest.raises(VergeError, match=r"moved/config\.json cannot be read"):
        open_config(moved)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--nodes", "2"], "only shape what --print-launch prints"),
        (["--print-launch", "--ranks-per-node", "65"], "groups_per_step is 64 but must be ≥ 65"),
        (["--print-launch", "--nodes", "2", "--rendezvous", "a:1"], "store.url is not set"),
        (["--print-launch", "--nodes", "2", "--set", f"store.url={ABSENT}"], "add --rendezvous HOST:PORT"),
    ],
)
def test_a_learner_launched_in_a_shape_that_cannot_work_is_refused(
    options: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    assert expected in refusal(capsys, monkeypatch, "learner", builtin(tmp_path, "tiny"), *options)


def test_the_launch_command_carries_the_run_its_overrides_and_where_to_resume(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = builtin(tmp_path, "tiny")
    options = ["--nodes", "2", "--ranks-per-node", "8", "--rendezvous", "n0:29500", "--resume", "never"]
    setting = ["--set", f"store.url={ABSENT}"]
    monkeypatch.setattr(sys, "argv", ["verge", "learner", config, "--print-launch", *options, *setting])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    words = shlex.split(capsys.readouterr().out)
    assert words[:3] == ["torchrun", "--nnodes=2", "--nproc-per-node=8"]
    assert words[words.index("verge") :] == ["verge", "learner", config, *setting, "--resume", "never"]


def test_a_launcher_that_waits_for_an_absent_store_can_be_stopped(tiny_model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ops.cli", "up", builtin(tmp_path, tiny_model), "--set", f"store.url={ABSENT}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as launcher:
        assert launcher.stderr is not None
        while "waiting for" not in (line := launcher.stderr.readline()):
            assert line, "the launcher ended by itself"
        launcher.terminate()
        _, said = launcher.communicate(timeout=20)
    assert launcher.returncode == 1
    assert said.splitlines()[-1] == "verge: stopped on request, before anything was started"


def test_a_process_that_ended_is_said_to_have_by_its_own_last_line_for_a_person(tmp_path: Path) -> None:
    child = Child("actor-0", ["actor", str(tmp_path / "nowhere")], tmp_path / "log")
    child.log.write_text("verge: of an earlier process\n")
    child.start()
    assert child.process is not None
    child.process.wait()
    with child.log.open("a") as log:
        log.write("  warnings.warn('at the end')\n")
    assert child.how_it_ended().startswith("ended with status 1: ")
    assert "nowhere" in child.how_it_ended()
    child.start()
    child.terminate(0)
    assert child.how_it_ended() == "was killed by SIGTERM"
