"""What the repository should not hold: secrets in its tracked files (a test), and packages with advisories (CI).

    python ops/setup/audit.py secrets [--renew]
    python ops/setup/audit.py dependencies        # make audit

Secrets are detect-secrets' to find; `.secrets.baseline` holds those of its findings that are none. Advisories are
pip-audit's to find, at PyPI's own JSON API (which few mirrors have) or at OSV's; where neither answers, it says that
nothing was audited, and that is no failure.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BASELINE = ROOT / ".secrets.baseline"
LOCK = ROOT / "requirements.lock"
SERVICES = ("pypi", "osv")
"""Whom pip-audit asks, in this order, until one answers."""
WITHIN_S = 120
ACCEPTED: dict[str, str] = {}
"""Advisories that we live with, by id, each with the reason."""


def tracked_files(root: Path = ROOT) -> list[str]:
    """The files of the repository, relative to its root. A lock of hashes or versions holds no secret."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and name not in (BASELINE.name, LOCK.name)]


def new_secrets(root: Path, files: Sequence[str], baseline: Path = BASELINE) -> list[str]:
    """`file:line: kind` of everything in these files that looks like a secret and is not in the baseline."""
    from detect_secrets.core import baseline as baselines

    known = baselines.load(baselines.load_from_file(str(baseline)))  # which also sets the plugins and filters
    left = _scan(root, files) - known
    return sorted(f"{name}:{secret.line_number}: {secret.type}" for name, secret in left)


def renew(root: Path = ROOT) -> None:
    """Write the baseline anew with its own plugins; look at its diff before you commit it."""
    from detect_secrets.core import baseline as baselines

    baselines.load(baselines.load_from_file(str(BASELINE)))
    baselines.save_to_file(_scan(root, tracked_files(root)), str(BASELINE))


def _scan(root: Path, files: Sequence[str]) -> Any:
    """A SecretsCollection whose files are named from the root, wherever that is."""
    from detect_secrets.core.secrets_collection import SecretsCollection

    found, named = SecretsCollection(str(root)), SecretsCollection()
    found.scan_files(*files, num_processors=2)
    for name, secret in found:
        secret.filename = name
        named[name].add(secret)
    return named


def judge(report: str) -> tuple[list[str], str, bool]:
    """What pip-audit's JSON says: (advisories not accepted, a line on what was audited, whether anything was)."""
    packages = json.loads(report)["dependencies"]
    audited = [package for package in packages if "skip_reason" not in package]
    if not audited:
        why = packages[0]["skip_reason"] if packages else "the lock names no package"
        return [], f"it knows none of {len(packages)} packages ({why})", False
    flaws = [
        f"{package['name']} {package['version']}: {flaw['id']}, mended in {', '.join(flaw['fix_versions']) or 'none'}"
        for package in audited
        for flaw in package["vulns"]
        if flaw["id"] not in ACCEPTED
    ]
    return flaws, f"audited: {len(audited)} of {len(packages)} packages, {len(flaws)} advisories", True


def ask(service: str, lock: Path) -> tuple[list[str], str, bool]:
    """As `judge`, of what one service says."""
    command = [sys.executable, "-m", "pip_audit", "-r", str(lock), "--no-deps", "--disable-pip", "-f", "json"]
    options = ["--vulnerability-service", service, "--progress-spinner", "off", "--timeout", "5"]
    try:
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=WITHIN_S)
    except subprocess.TimeoutExpired:
        return [], f"no answer within {WITHIN_S} s", False
    if not done.stdout.startswith("{"):
        said = done.stderr.strip().splitlines() or ["nothing"]
        return [], f"pip-audit said {said[-1]}", False
    return judge(done.stdout)


def audit_dependencies(lock: Path = LOCK) -> int:
    """Ask for advisories. Exit status 1 where there is one; 0 where there is none, or nobody to ask."""
    unanswered = []
    for service in SERVICES:
        flaws, summary, audited = ask(service, lock)
        if audited:
            print("\n".join([*flaws, summary]))
            return 1 if flaws else 0
        unanswered.append(f"{service}: {summary}")
    print("not audited, as no index answered: " + "; ".join(unanswered))
    return 0


def main(words: Sequence[str]) -> int:
    """The command."""
    match list(words):
        case ["secrets"]:
            found = new_secrets(ROOT, tracked_files())
            print("\n".join(found) or "no secrets in the tracked files")
            return 1 if found else 0
        case ["secrets", "--renew"]:
            renew()
            return 0
        case ["dependencies"]:
            return audit_dependencies()
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
