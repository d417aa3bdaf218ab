"""Every command that the documents show is run by a test, or is read by the real parser with its flags and files."""

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from ops.cli import main
from ops.config import override_config
from tests.ops.documents import (
    ROOT,
    blocks,
    documents,
    inline_commands,
    options,
    parsed,
    prose,
    resolved,
    shell_commands,
)
from tests.ops.stage import PROBLEM, demo_run, with_verge

TUTORIAL = ROOT / "ops" / "TUTORIAL.md"
LANGUAGES = {"sh", "text", "python", "toml", "json"}
RUN_HERE = {
    "verge state summary runs/demo",
    "verge state list runs/demo --where 'attempts >= 16' --sort -gate --limit 20",
    f"verge state problem {PROBLEM} runs/demo",
    "verge state evaluations runs/demo",
    "verge state export demo.state runs/demo",
    "verge doctor ops/configs/demo.toml",
    "verge ps",
    "verge down runs/demo",
    "verge gating slope --advantage maxrl",
    "verge state acl runs/demo",
}
"""Run by this file, in a folder with the run `demo`."""
ONLY_READ = {
    "make demo": "minutes; it is `verge up ops/configs/demo.toml`, whose form tests/end_to_end/test_run.py runs",
    "make test": "this is run by it",
    ".venv/bin/verge up ops/configs/smollm2.toml": "half an hour; tests/end_to_end runs its loop on the tiny model",
    "verge up ops/configs/demo.toml": "five minutes; tests/end_to_end/test_run.py runs its form in 20 steps",
    "verge serve runs/demo": "until it is stopped; tests/ops/test_serve_*.py run it",
    "verge logs runs/demo --follow": "until it is stopped; tests/ops/test_runs_cli.py runs it",
    "verge eval runs/demo --model tiny --out base.parquet": "starts an engine; the tutorial's chain runs it",
    "verge eval runs/demo --model runs/demo/weights/v0000150 --out trained.parquet --against base.parquet"
    " --plot gains.svg": "starts an engine; the tutorial's chain runs it",
    "verge sim --actors 200 --max-lag 4": "half a minute; tests/ops/test_sim.py plays smaller scenes",
    "verge track runs/demo": "tests/ops/test_track.py runs it, where its packages are",
    "verge lab staleness": "a minute and a half; tests/learner/test_staleness.py runs a shorter one",
    "verge lab collapse --quick": "minutes; tests/ops/test_lab_runs.py carries out shorter runs",
    "verge lab collapse --jobs 2": "hours; the same",
    "verge lab offpolicy --minutes 60": "an hour; the same",
    "verge lab report ops/labs/collapse.jsonl --out ops/labs": "would write here; test_lab_report.py holds what is"
    " here to it",
    "verge gating atlas atlas.html": "tests/ops/test_gating_cli.py draws it",
    "verge lab filtered --figure filtered.png": "tests/ops/test_lab_filtered.py runs it",
    "docker build -f ops/images/Dockerfile --build-arg PIP_EXTRA_INDEX_URL=… -t verge:cpu .": "needs a Docker daemon",
    "docker compose -f ops/compose/compose.yaml up --scale actor=2": "needs a Docker daemon; test_compose reads it",
    "kubectl apply -k ops/kubernetes/overlays/cpu-demo": "needs a cluster; test_kubernetes renders and checks it",
    "sh ops/compose/secrets.sh": "would write into the repository; test_compose runs a copy",
    ". /path/to/verge/.venv/bin/activate": "the reader's own path",
}
"""Why a test cannot run them as they stand; their words and files are checked."""


def test_every_command_of_the_documents_is_run_or_read_and_no_other_is_listed() -> None:
    shown = {command for document in documents() for command in shell_commands(document)}
    in_the_tutorial = set(shell_commands(TUTORIAL)) - set(ONLY_READ)
    known = RUN_HERE | set(ONLY_READ) | in_the_tutorial
    assert shown - known == set(), "no test runs these: list each in RUN_HERE, or in ONLY_READ with the reason"
    assert known - shown == set(), "no document shows these any more"


def test_code_in_the_documents_is_fenced_with_its_language_and_can_be_read() -> None:
    for document in documents():
        indented = [line for line in prose(document) if line.startswith("    ")]
        assert not indented, f"{document}: a block that is not fenced is seen by no test: {indented[0]}"
        for block in blocks(document):
            assert block.language in LANGUAGES, f"{block.place}: {block.info!r} is none of {LANGUAGES}"
            if block.language == "python":
                compile(block.text, block.place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            elif block.language == "toml":
                tomllib.loads(block.text)
            elif block.language == "json":
                json.loads(block.text)


def test_a_command_in_a_sentence_is_one_and_has_the_options_that_it_is_said_to_have() -> None:
    found = [(document, command) for document in documents() for command in inline_commands(document)]
    assert len(found) > 30
    for document, text in found:
        command, rest = resolved(shlex.split(text.replace("…", "")))
        unknown = {word for word in rest if word.startswith("--")} - options(command)
        assert not unknown, f"{document}: `{text}`: there is no {unknown}"


def test_every_link_between_documents_leads_somewhere() -> None:
    for document in documents():
        for target in re.findall(r"\]\(([^)\s]+)\)", "\n".join(prose(document))):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            there = (document.parent / path).resolve() if path else document
            assert there.exists(), f"{document}: {target}"
            if anchor:
                headings = [line.lstrip("# ").lower() for line in prose(there) if line.startswith("#")]
                anchors = {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}
                assert anchor in anchors, f"{document}: {target}"


@pytest.mark.parametrize("command", sorted(ONLY_READ))
def test_a_command_that_is_only_read_has_its_words_and_files_right(command: str) -> None:
    words = shlex.split(command)
    match words:
        case ["make", target]:
            assert f"\n{target}:" in (ROOT / "Makefile").read_text()
        case [("verge" | ".venv/bin/verge"), *rest]:
            given = parsed(["verge", *rest])
            for value in given.values():
                if isinstance(value, Path) and value.suffix == ".toml":
                    override_config(tomllib.loads((ROOT / value).read_text()), given.get("overrides") or (), str(value))
        case ["docker", "build", "-f", file, *_, context]:
            assert (ROOT / file).is_file()
            assert (ROOT / context / "requirements.lock").is_file()
        case ["docker", "compose", "-f", file, "up", "--scale", scaled]:
            assert scaled.partition("=")[0] in yaml.safe_load((ROOT / file).read_text())["services"]
        case ["kubectl", "apply", "-k", folder]:
            assert (ROOT / folder / "kustomization.yaml").is_file()
        case ["sh", script]:
            assert (ROOT / script).is_file()
        case [".", path]:
            assert path.endswith("/bin/activate")
        case _:
            raise AssertionError(f"nothing here can read {command!r}")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A folder like the repository's root after `make demo`: ops/, models/ and runs/demo."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "ops").symlink_to(ROOT / "ops")
    (folder / "models").mkdir()
    (folder / "models" / "tiny-countdown").symlink_to(tiny_model)
    demo_run(folder / "runs" / "demo", tiny_model)
    return folder


@pytest.mark.parametrize("command", sorted(RUN_HERE))
def test_a_command_of_the_documents_runs(
    command: str, stage: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(stage)
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, ended.value.code
    assert capsys.readouterr().out.strip()


def test_the_python_of_the_readme_answers(
    stage: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(stage)
    (block,) = [block for block in blocks(ROOT / "README.md") if block.language == "python"]
    exec(compile(block.text, block.place, "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed, "it lists what is hard"
    for line in printed:
        assert re.fullmatch(r"countdown-\d{4}=\d\d 0\.\d+", line), line


def test_the_tutorial_runs_from_its_first_command_to_its_last(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny-countdown").symlink_to(tiny_model)
    environment = with_verge(tmp_path)
    said: dict[str, str] = {}
    for block in blocks(TUTORIAL):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
    for command in shell_commands(TUTORIAL):
        if command not in ONLY_READ:
            done = subprocess.run(
                ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            said[command] = done.stdout
    first, last = (read_pass_at_k(text) for command, text in said.items() if command.startswith("verge eval"))
    assert first.keys() == last.keys() == {1, 8, 64}
    # Seen over runs: pass@8 rises by 3 to 6 standard errors.
    gain, error = re.findall(r"pass@8 .*→.*\+(\d\.\d+) ± (\d\.\d+)", last_text(said))[0]
    assert float(gain) > 2 * float(error)
    assert "newly solved" in (tmp_path / "gains.svg").read_text()


def read_pass_at_k(text: str) -> dict[int, float]:
    return {int(k): float(value) for k, value in re.findall(r"^pass@(\d+) +(\d\.\d+) ±", text, re.MULTILINE)}


def last_text(said: dict[str, str]) -> str:
    return next(text for command, text in reversed(said.items()) if "--against" in command)
