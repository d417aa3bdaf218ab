"""The [store] section of the config."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from store.section import Section


class StoreConfig(Section):
    """Where the facts live and how long a claim on them lasts."""

    url: str | None = Field(None, pattern=r"^rediss?://\S+$")
    """Redis to use, as redis://[user@]host:port/db or rediss:// for TLS. None: an embedded server in the run folder."""

    password_file: Path | None = None
    """File whose first line is the password of `url`. Passwords do not belong in a URL, where they are logged."""

    ca_file: Path | None = None
    """PEM file with the authority that signed the server's certificate. None: one that the system trusts."""

    cert_file: Path | None = None
    """PEM file with this client's certificate, where the server asks for one. Goes with `key_file`."""

    key_file: Path | None = None
    """PEM file with the private key of `cert_file`."""

    port: int | None = Field(None, ge=1, le=65535)
    """TCP port of the embedded server on 127.0.0.1. None: any free one."""

    fsync: Literal["everysec", "always"] = "everysec"
    """When the embedded server's log reaches the disk. `everysec` may lose a second of work if the machine (not just
    the process) dies; `always` loses nothing and makes each commit wait for the disk."""

    lease_s: float = Field(60.0, gt=0)
    """Seconds after which a ticket that its actor has not renewed goes to another actor. Actors renew at a third."""

    payload_ttl_s: int = Field(6 * 3600, ge=60)
    """Seconds after which a payload whose commit never finished is forgotten."""

    max_groups: int = Field(1_000_000, ge=1)
    """Most groups that the pool and the open tickets may come to. At the limit tickets wait; nothing is dropped."""

    max_payload_mib: int = Field(16_384, ge=1)
    """Most MiB of payloads in the pool, those that open tickets will bring included, at the mean size of a group.
    At the limit tickets wait; nothing is dropped. Before the first group, nothing is known of their size."""

    patience_s: float = Field(120.0, ge=0)
    """Seconds for which a client retries a store that does not answer, saying so, before it gives up."""

    @model_validator(mode="after")
    def _tls_files_have_tls(self) -> Self:
        named = [name for name in ("ca_file", "cert_file", "key_file") if getattr(self, name) is not None]
        if named and not (self.url or "").startswith("rediss://"):
            raise ValueError(f"{named[0]} is set, but url is not rediss://…: without TLS it would not be used")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together: a certificate is of no use without its key")
        return self
