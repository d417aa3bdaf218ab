"""What compose.yaml and the rendered manifests have in common: containers whose words start `verge`."""

import os
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops.config import RunConfig, override_config
from tests.ops.documents import parsed

OPS = Path(__file__).parents[2] / "ops"
COMPOSE = OPS / "compose"
KUBERNETES = OPS / "kubernetes"
Manifest = dict[str, Any]


def config_of(text: str, words: list[str]) -> RunConfig:
    """The config that a command line makes of a run.toml."""
    return override_config(tomllib.loads(text), parsed(words).get("overrides") or (), "run.toml")


def verge_words(image: str, command: list[str], arguments: list[str]) -> list[str] | None:
    """`verge …` as one list, out of a container's command and arguments; None where it is another program."""
    words = [*(command or (["tini", "--", "verge"] if "verge" in image else [])), *arguments]
    if words[:2] == ["sh", "-c"]:
        words = shlex.split(words[2].partition(" > ")[0])
    return words[words.index("verge") :] if "verge" in words else None


def rendered(folder: Path) -> list[Manifest]:
    """The manifests that `kubectl apply -k` would apply."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl: the overlays were not rendered")
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "a warning of kustomize's"
    return list(yaml.safe_load_all(done.stdout))


def with_components(overlay: Path, components: Sequence[Path], folder: Path) -> Path:
    """A kustomization in `folder` of one that is there and components on top, as a user's own would be."""
    resources, taken = [os.path.relpath(overlay, folder)], [os.path.relpath(part, folder) for part in components]
    own = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "namespace": "verge"}
    images = [{"name": "verge", "newTag": "cpu"}]
    text = yaml.safe_dump(own | {"resources": resources, "components": taken, "images": images})
    (folder / "kustomization.yaml").write_text(text)
    return folder


def containers(manifests: list[Manifest]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(workload, pod spec, container)."""
    for manifest in manifests:
        spec = manifest.get("spec", {}).get("template", {}).get("spec")
        for container in [*spec.get("initContainers", []), *spec["containers"]] if spec else []:
            yield manifest["metadata"]["name"], spec, container


def run_toml(manifests: list[Manifest]) -> str:
    """The run's config, which every pod mounts."""
    (text,) = [m["data"]["run.toml"] for m in manifests if m["kind"] == "ConfigMap" and "run.toml" in m["data"]]
    return str(text)
