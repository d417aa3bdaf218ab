"""What the Hugging Face hub has, as a folder on this machine."""

from collections.abc import Sequence
from pathlib import Path

from store.errors import VergeError


def hub_folder(name: str, patterns: Sequence[str], refusal: str, repo_type: str | None = None) -> Path:
    """The files of a hub id (owner/name) that match; repo_type None: of a model.

    Raises:
        VergeError: the hub does not give it, or cannot be reached; `refusal`, then the reason.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, repo_type=repo_type, allow_patterns=list(patterns)))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        raise VergeError(f"{refusal}: {str(error).strip().splitlines()[0]}") from None
