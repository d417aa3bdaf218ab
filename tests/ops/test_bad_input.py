"""Bad input gets one line that says what to change, a non-zero exit, and loses nothing."""

import json
import socket
import sys
from pathlib import Path

import pytest

from ops.cli import main
from ops.config import load_config
from ops.runfolder import enter_run_folder, run_lock, set_aside
from store.errors import VergeError

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


def test_a_context_beyond_the_models_positions_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_model: Path
) -> None:
    message = refusal(capsys, monkeypatch, "up", builtin(tmp_path, tiny_model, context=4096))
    assert "64 positions" in message


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
    assert "in use by another verge process" in message


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
