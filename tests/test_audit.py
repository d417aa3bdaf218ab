"""No secret is in the repository, one that is planted is found, and an audit says what was not audited."""

import json
import random
import shutil
import string
import subprocess
import sys
from pathlib import Path

import pytest

from ops.setup import audit

PRIVATE = "-----BEGIN " + "OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmU\n"


def drawn(letters: str, count: int) -> str:
    return "".join(random.Random(7).choices(letters, k=count))


def need_scanner() -> None:
    pytest.importorskip("detect_secrets", reason="detect-secrets is not installed: the files were not scanned")


@pytest.mark.skipif(shutil.which("git") is None or not (audit.ROOT / ".git").exists(), reason="no git checkout")
def test_no_tracked_file_holds_a_secret() -> None:
    need_scanner()
    assert "README.md" in audit.tracked_files()
    # A process of its own: the scanner forks, and this one has the threads of everything that was tested before.
    command = [sys.executable, str(audit.ROOT / "ops" / "setup" / "audit.py"), "secrets"]
    scanned = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert scanned.stdout == "no secrets in the tracked files\n", scanned.stdout + scanned.stderr
    assert scanned.returncode == 0


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("AWS Access Key", f"key = AKIA{drawn(string.ascii_uppercase + string.digits, 16)}\n"),
        ("GitHub Token", f"git clone https://ghp_{drawn(string.ascii_letters + string.digits, 36)}@github.com/a/b\n"),
        ("Private Key", PRIVATE),
        ("Basic Auth Credentials", "url = redis://demo:" + "zK4v9Qm2@store.internal:6379\n"),
        ("Secret Keyword", 'password = "' + 'zK4v9Qm2pL7x"\n'),
        ("Hex High Entropy String", f'token = "{drawn("0123456789abcdef", 48)}"\n'),
    ],
)
def test_a_planted_secret_is_found_with_its_line(tmp_path: Path, kind: str, text: str) -> None:
    need_scanner()
    (tmp_path / "run.toml").write_text('name = "demo"\n' + text)
    assert f"run.toml:2: {kind}" in audit.new_secrets(tmp_path, ["run.toml"])


def test_advisories_fail_the_audit_with_their_package_and_what_mends_them() -> None:
    flaw = {"id": "GHSA-1", "fix_versions": ["2.0"], "aliases": [], "description": ""}
    report = {"dependencies": [
        {"name": "a", "version": "1.0", "vulns": [flaw]}, {"name": "b", "version": "1.0", "vulns": []},
        {"name": "c", "skip_reason": "not on the index"},
    ], "fixes": []}  # fmt: skip
    assert audit.judge(json.dumps(report)) == (
        ["a 1.0: GHSA-1, mended in 2.0"],
        "audited: 2 of 3 packages, 1 advisories",
        True,
    )


def test_an_index_that_knows_no_package_has_audited_nothing() -> None:
    report = {"dependencies": [{"name": "c", "skip_reason": "no such package there"}], "fixes": []}
    assert audit.judge(json.dumps(report)) == ([], "it knows none of 1 packages (no such package there)", False)


def test_an_audit_without_a_network_names_each_index_that_did_not_answer_and_does_not_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    lock = tmp_path / "lock"
    lock.write_text("packaging==24.0\n")
    assert audit.audit_dependencies(lock) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("not audited, as no index answered: pypi: ")
    assert "; osv: " in line
