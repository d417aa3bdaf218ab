"""From `model.path` to a folder on this machine."""

import sys
from pathlib import Path

from actors.hub import hub_folder
from store.errors import VergeError

MODELS = Path("models")


def resolve_model(name: str, field: str = "model.path") -> Path:
    """The folder of the model a config names, building or fetching it on first use.

    Args:
        name: `tiny`, `tiny:arithmetic`, `smollm2`, a Hugging Face folder, or a hub id.
        field: the one of the config that holds it, for what is said of it.

    Raises:
        VergeError: no such folder, and the hub does not have it or cannot be reached.
    """
    if name.partition(":")[0] == "tiny":
        from ops.tiny import build_tiny

        family = name.partition(":")[2] or "countdown"
        folder = (MODELS / f"tiny-{family}").absolute()
        if not folder.exists():
            print(
                f"building the tiny {family} model in {folder}, once (under 2 minutes on two cores)",
                file=sys.stderr,
                flush=True,
            )
        build_tiny(folder, family)
        return folder
    if name == "smollm2":
        from ops.fetch import fetch_smollm2

        return fetch_smollm2((MODELS / "smollm2-135m-instruct").absolute())
    folder = Path(name)
    if (folder / "config.json").is_file():
        return folder.resolve()
    if folder.is_dir():
        raise VergeError(f"{field} {name} is a folder without config.json; name a Hugging Face model folder")
    if folder.is_absolute() or name.startswith(".") or name.count("/") != 1:
        raise VergeError(f"{field} {name}: no such folder, and not a hub id (owner/name), `tiny` or `smollm2`")
    patterns = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
    return hub_folder(name, patterns, f"{field} {name}: no such folder, and the hub does not give it")
