"""Every image that a file names is pinned to a whole version, and is the same wherever it is named."""

import re
from collections import defaultdict
from collections.abc import Iterator

import pytest
import yaml

from tests.ops.deployment import COMPOSE, KUBERNETES, OPS

PINNED = re.compile(r"docker\.io/(?P<name>\w+/\w+):(?P<version>(v?\d+\.\d+\.\d+|\d\d\.\d\d)(-[a-z0-9.]+)*)")
"""Three numbers; of Debian its two, as in 12.11."""
OURS = {"verge:cpu", "verge:gpu"}
"""Built from ops/images/Dockerfile; whoever pushes them names them in compose's VERGE_IMAGE, in an overlay's newTag."""


def named_images() -> Iterator[tuple[str, str]]:
    """(file, image) of every image that is named, variables replaced by what they are without being set."""
    dockerfile = OPS / "images" / "Dockerfile"
    for _, base in re.findall(r"^ARG (CPU_BASE|GPU_BASE)=(\S+)$", dockerfile.read_text(), re.MULTILINE):
        yield dockerfile.name, base
    for file in COMPOSE.glob("compose*.yaml"):
        for service in yaml.safe_load(file.read_text())["services"].values():
            if "image" in service:
                yield file.name, re.sub(r"\$\{\w+:-([^}]+)\}", r"\1", service["image"])
    for file in sorted(KUBERNETES.rglob("kustomization.yaml")):
        for image in yaml.safe_load(file.read_text()).get("images", []):
            yield str(file.relative_to(KUBERNETES)), f"{image.get('newName', image['name'])}:{image.get('newTag')}"


def unpinned(image: str) -> bool:
    return image not in OURS and PINNED.fullmatch(image) is None


def test_every_image_is_pinned_to_a_whole_version_and_is_the_same_everywhere() -> None:
    versions, places = defaultdict(set), defaultdict(set)
    for file, image in named_images():
        assert not unpinned(image), f"{file}: {image}"
        if match := PINNED.fullmatch(image):
            versions[match["name"]].add(match["version"])
            places[match["name"]].add(file)
    assert {name: len(found) for name, found in versions.items()} == dict.fromkeys(versions, 1)
    assert places["library/redis"] == {"compose.yaml", "base/kustomization.yaml"}
    assert set(versions) == {"library/debian", "nvidia/cuda", "library/redis", "prom/prometheus", "grafana/grafana"}


def test_the_containers_of_the_manifests_get_their_image_from_a_kustomization() -> None:
    found = {
        image
        for file in KUBERNETES.rglob("*.yaml")
        for image in re.findall(r"\bimage: *([^\s,}]+)", file.read_text())
    }  # fmt: skip
    assert found == {"verge", "redis"}
    assert set(re.findall(r"^FROM (\S+)", (OPS / "images" / "Dockerfile").read_text(), re.MULTILINE)) == {
        "${CPU_BASE}", "${GPU_BASE}", "system",
    }  # fmt: skip


@pytest.mark.parametrize(
    "image",
    [
        "redis", "docker.io/library/redis", "docker.io/library/redis:latest", "docker.io/library/redis:7",
        "docker.io/library/redis:7.4-bookworm", "docker.io/library/debian:bookworm-slim", "verge:latest",
        "docker.io/library/redis:None", "docker.io/prom/prometheus:v3",
    ],
)  # fmt: skip
def test_an_image_that_is_not_pinned_is_found(image: str) -> None:
    assert unpinned(image)
