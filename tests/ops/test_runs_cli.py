"""The runs of a machine: listed, read and stopped; and what a machine lacks for one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ops.cli import main
from ops.config import load_config
from ops.doctor import examine
from ops.runfolder import enter_run_folder, holder, run_lock
from tests.ops.test_bad_input import builtin, refusal

HOLD = "import sys, time\nfrom pathlib import Path\nfrom ops.runfolder import run_lock\n"
WAIT = "with run_lock(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)"


def verge(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """What `verge …` prints where it succeeds."""
    monkeypatch.setattr(sys, "argv", ["verge", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    return capsys.readouterr().out


def made_run(folder: Path) -> Path:
    config = load_config(Path(builtin(folder, "tiny")))
    enter_run_folder(config)
    return config.run_folder


def test_a_run_folder_knows_who_has_it(tmp_path: Path) -> None:
    assert holder(tmp_path / "absent") is None
    with run_lock(tmp_path):
        assert holder(tmp_path) == os.getpid()
    assert holder(tmp_path) is None


def test_down_stops_the_process_that_has_the_run_and_waits_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made_run(tmp_path)
    assert "is not running" in verge(capsys, monkeypatch, "down", str(folder))
    with subprocess.Popen([sys.executable, "-c", HOLD + WAIT, str(folder)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        listed = json.loads(verge(capsys, monkeypatch, "ps", str(tmp_path), "--json"))["runs"]
        assert [(run["folder"], run["process"]) for run in listed] == [(str(folder), process.pid)]
        assert "stopped; `verge up` continues it" in verge(capsys, monkeypatch, "down", str(folder))
        assert process.wait(60) == -signal.SIGTERM
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "latest").write_text("step-0000050")
    (run,) = json.loads(verge(capsys, monkeypatch, "ps", str(tmp_path), "--json"))["runs"]
    assert (run["process"], run["phase"], run["step"], run["steps"]) == (None, "stopped", 50, 1)


def test_logs_are_read_from_their_ends_with_the_name_before_each_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made_run(tmp_path)
    (folder / "logs").mkdir()
    (folder / "logs" / "learner.log").write_text("one\ntwo\nthree\n")
    (folder / "logs" / "actor-0.log").write_bytes(b"half \xff\n")
    said = verge(capsys, monkeypatch, "logs", str(folder), "-n", "2")
    assert said == "actor-0 | half \ufffd\nlearner | two\nlearner | three\n"
    assert verge(capsys, monkeypatch, "logs", str(folder), "actor") == "actor-0 | half \ufffd\n"
    assert "no log of 'lerner'; there are: actor-0, learner" in refusal(
        capsys, monkeypatch, "logs", str(folder), "lerner"
    )


def test_logs_that_are_followed_show_whole_lines_as_they_come(tmp_path: Path) -> None:
    folder = made_run(tmp_path)
    (folder / "logs").mkdir()
    log = folder / "logs" / "learner.log"
    log.write_text("begun\n")
    command = [sys.executable, "-m", "ops.cli", "logs", str(folder), "-f"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process,
        log.open("a") as out,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"learner | begun\n"
        for part in ("half", " and half\n"):
            out.write(part)
            out.flush()
        assert process.stdout.readline() == b"learner | half and half\n"
        (folder / "logs" / "evaluation.log").write_text("later\n")
        assert process.stdout.readline() == b"evaluation | later\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_the_doctor_names_what_is_missing_and_what_gives_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = builtin(tmp_path, "tiny")
    assert all(finding.ok for finding in examine(load_config(Path(config))))
    assert "ok  embedded store" in verge(capsys, monkeypatch, "doctor", config)
    overrides = ["model.path=/no/such/model", "problems.source=absent.jsonl", "problems.verifier=code"]
    monkeypatch.setenv("PATH", "")
    lacking = {f.name: f.fix for f in examine(load_config(Path(config), overrides)) if not f.ok}
    assert lacking["C++ compiler"] == "apt-get install g++"
    assert lacking["sandbox of `code`"] == "apt-get install bubblewrap"
    assert "set problems.source" in lacking["problems"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "model" in {f.name for f in examine(load_config(Path(config), overrides)) if not f.ok}
    monkeypatch.setattr(sys, "argv", ["verge", "doctor", config, "--set", "problems.source=absent.jsonl", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [f["name"] for f in found if not f["ok"]].count("problems") == 1


def test_the_memory_that_a_model_takes_is_counted_from_its_weights(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"dtype": "bfloat16"}')
    with (model / "model.safetensors").open("wb") as weights:
        weights.truncate(2 << 40)  # 2^40 parameters, without taking the disk
    config = load_config(Path(builtin(tmp_path, model)))
    (memory,) = [finding for finding in examine(config) if finding.name == "memory"]
    assert not memory.ok
    assert f"takes {16 * 1024}.0 GiB" in memory.found
