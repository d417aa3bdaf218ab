"""The [serve] section of the config."""

from pathlib import Path

from pydantic import Field

from store.section import Section


class ServeConfig(Section):
    """The live page, the HTTP API and the metrics: `verge serve`, and part of `verge up`."""

    enabled: bool = True
    """Whether `verge up` starts the page along with the run."""
    host: str = "127.0.0.1"
    """Address to listen on. Anywhere but on loopback, every request needs the token."""
    port: int = Field(0, ge=0, le=65535)
    """TCP port. 0: the one of last time if it is free, else any free one; the address is printed."""
    token_file: Path | None = None
    """File whose first line is the token, 16 characters or more. None: `serve/token` in the run folder, made on first
    use."""
