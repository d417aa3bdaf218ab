"""The run folder: the config a run began with, its lock, and where its store is reached."""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from ops.config import RunConfig, fingerprint_fields, load_config, override_config
from store.config import StoreConfig
from store.errors import VergeError
from store.server import EmbeddedServer, live_server

CONFIG_FILE = "config.json"
_LOCK = "lock"


def open_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The config of a TOML file, or of the run folder that one was started in, with `section.field=value` overrides."""
    if not path.is_dir():
        return load_config(path, overrides)
    saved = path / CONFIG_FILE
    if not saved.exists():
        raise VergeError(f"{path} is not a run folder: it has no {CONFIG_FILE}; name a run folder or a TOML file")
    try:
        data = json.loads(saved.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise VergeError(
            f"{saved} cannot be read ({error}); `verge up` with the run's TOML file writes it anew"
        ) from None
    # Where the folder is now, which need not be where the run began.
    return override_config(data, overrides, str(saved)).model_copy(update={"folder": path.resolve()})


def enter_run_folder(config: RunConfig) -> bool:
    """Make the run's folder, or check that `config` may continue the run that is in it.

    Returns:
        Whether there was a run to continue.

    Raises:
        VergeError: a field that decides what the run learns has changed, or the folder cannot be written.
    """
    folder = config.run_folder
    saved = folder / CONFIG_FILE
    resumed = saved.exists()
    if resumed:
        before, now = fingerprint_fields(open_config(folder)), fingerprint_fields(config)
        changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        if changed:
            name = changed[0]
            raise VergeError(
                f"run folder {folder} began with {name} = {before.get(name)}, but it is now {now.get(name)}"
                + (f" (and {len(changed) - 1} more: {', '.join(changed[1:])})" if len(changed) > 1 else "")
                + "; set it back, choose another run name, or start over with --fresh"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(saved, config.model_copy(update={"folder": folder.resolve()}).model_dump_json(indent=2))
    except OSError as error:
        raise _unwritable(folder, error) from None
    return resumed


def _unwritable(folder: Path, error: OSError) -> VergeError:
    return VergeError(f"run folder {folder} cannot be written: {error.strerror}; free space or set `folder` to another")


def set_aside(folder: Path) -> Path | None:
    """Move the folder of a run to the first free NAME.N, so that a run can start over and nothing is lost."""
    if not (folder / CONFIG_FILE).exists():
        return None
    number = 1
    while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    folder.rename(aside)
    return aside


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold the run folder: one `verge up` at a time, and no second server over the same data.

    Raises:
        VergeError: another live process holds it, or it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / _LOCK).open("a+")
    except OSError as error:
        raise _unwritable(folder, error) from None
    with file:
        for again in (0.1, 0.1, 0.1, 0.0):  # `holder` has it for a moment, to look
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(again)
        else:
            raise VergeError(
                f"run folder {folder} is in use by process {holder(folder)}; `verge down {folder}` stops it"
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def holder(folder: Path) -> int | None:
    """Process id of the verge that has the run folder; None when none has."""
    try:
        with (folder / _LOCK).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or 0) or None
    except (OSError, ValueError):
        pass
    return None


def store_endpoint(config: RunConfig) -> tuple[str, str | None]:
    """URL and password of the run's live store.

    Raises:
        VergeError: the store is embedded and not running, or the password file cannot be read.
    """
    if config.store.url is None:
        server = live_server(config.run_folder)
        if server is None:
            raise VergeError(f"the embedded store of {config.run_folder} is not running; `verge up` starts it")
        return server.url, server.password
    url = config.store.url + _tls_query(config.store)
    if config.store.password_file is None:
        return url, None
    return url, read_password(config.store.password_file, "store.password_file ")


def read_password(file: Path, name: str = "") -> str:
    """The first line of a password file. VergeError, with `name` before the path, when it has none."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise VergeError(f"{name}{file}: {getattr(error, 'strerror', None) or 'not a text'}") from None
    if not lines or not lines[0]:
        raise VergeError(f"{name}{file}: its first line is empty; write the password there")
    return lines[0]


def _tls_query(store: StoreConfig) -> str:
    """The TLS files as redis-py reads them from a URL, so that one string says how the store is reached."""
    files = {"ca_file": "ssl_ca_certs", "cert_file": "ssl_certfile", "key_file": "ssl_keyfile"}
    named = {name: path for name in files if (path := getattr(store, name)) is not None}
    for name, path in named.items():
        if not path.is_file():
            raise VergeError(f"store.{name} {path}: no such file")
    return "?" + urlencode({files[name]: path for name, path in named.items()}) if named else ""


@contextmanager
def store_of(config: RunConfig) -> Iterator[tuple[str, str | None]]:
    """URL and password of the run's store, starting its embedded server for as long as needed if none is running."""
    if config.store.url is not None:
        yield store_endpoint(config)
        return
    folder = config.run_folder
    if not (folder / "store").is_dir():
        raise VergeError(f"run folder {folder} has no store: the run has not been started yet")
    if live_server(folder) is not None:
        yield store_endpoint(config)
        return
    with run_lock(folder), EmbeddedServer(folder) as embedded:
        yield embedded.url, embedded.password


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that a reader sees all of it or the file that was there before."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
