"""The embedded server: a private Redis or Valkey in the run folder, for one machine."""

import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from store.binaries import find_binary
from store.errors import VergeError

_START_WITHIN_S = 120.0
_STOP_WITHIN_S = 60.0
_FREE_WITHIN_S = 5.0
_TRIES = 20

# PR_SET_PDEATHSIG (1) makes the kernel send the server SIGTERM when its launcher dies, even of SIGKILL. It has to be
# set in the child and survives exec; a preexec_fn would run Python in the fork of a process full of torch threads.
_LAUNCH = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the launcher died first")
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """How to reach an embedded server, as its `server.json` says it."""

    port: int
    pid: int
    password_file: str
    binary: str

    @property
    def url(self) -> str:
        """For Store.connect."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def password(self) -> str:
        """The password, read from its file."""
        return Path(self.password_file).read_text().strip()


class EmbeddedServer:
    """A server whose data, log, password and lock are in `run_dir/store`.

    stopped ──start──▶ running ──stop──▶ stopped
                          └──its launcher dies──▶ stopped: the kernel tells it to, and it saves first

    Invariant: one server per folder. It holds the folder's lock itself (an inherited descriptor), so that the lock
    lasts exactly as long as it lives, and a second server can never append to the same log.

        with EmbeddedServer(run_dir) as server:
            store = await Store.connect(server.url, "demo", server.password)

    Start it from the main thread: the kernel ends it when the *thread* that started it ends.
    """

    def __init__(
        self,
        run_dir: Path,
        port: int | None = None,
        fsync: Literal["everysec", "always"] = "everysec",
        binary: Path | None = None,
    ) -> None:
        """Nothing is started yet. `port` None: the one of last time if it is free, else any; `binary` None: found."""
        self.folder = Path(run_dir).absolute() / "store"
        self._port = port
        self._fsync = fsync
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None
        self._info: ServerInfo | None = None

    @property
    def info(self) -> ServerInfo:
        """How to reach the running server."""
        if self._info is None:
            raise VergeError(f"the embedded store in {self.folder} is not running")
        return self._info

    @property
    def url(self) -> str:
        """For Store.connect."""
        return self.info.url

    @property
    def password(self) -> str:
        """For Store.connect; never logged, never in an argument list."""
        return self.info.password

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self.info.pid

    @property
    def alive(self) -> bool:
        """Whether the process that this object started still runs."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> ServerInfo:
        """Start the server on the folder's data and wait until it answers.

        Raises:
            VergeError: no binary; the folder has a live server already; the port is in use; the disk is full; or the
                log is damaged. The last line of the server's log is in the message.
        """
        if self.alive:
            return self.info
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            password_file = self._write_password()
        except OSError as error:
            raise VergeError(f"the embedded store cannot use {self.folder}: {error.strerror}") from error
        last = read_info(self.folder.parent)
        binary = self._binary or find_binary(last.binary if last else None)
        with (self.folder / "lock").open("a") as lock:
            _lock(lock.fileno(), self.folder)
            for attempt in range(_TRIES):
                port = self._port or (last.port if last and attempt == 0 else _free_port())
                if self._launch(binary, port, password_file, lock.fileno()):
                    return self.info
                if self._port:
                    raise VergeError(f"port {port} is in use; set store.port to another, or leave it out")
        raise VergeError(f"no free port was found on 127.0.0.1 in {_TRIES} tries")

    def _launch(self, binary: Path, port: int, password_file: Path, lock: int) -> bool:
        """True when the server answers, False when its port was taken by another."""
        log = self.folder / "server.log"
        seen = log.stat().st_size if log.exists() else 0
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), str(binary), "-"],
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(lock,),
            start_new_session=True,  # Ctrl-C is for the launcher, which stops the server last
        )
        password = password_file.read_text().strip()
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(_config(port, password, self._fsync).encode())
        try:
            started = self._wait_until_ready(process, port, password, seen)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if started:
            self._process = process
            self._info = ServerInfo(port, process.pid, str(password_file), str(binary))
            _write_atomically(self.folder / "server.json", json.dumps(asdict(self._info)), 0o644)
        return started

    def _wait_until_ready(self, process: subprocess.Popen[bytes], port: int, password: str, seen: int) -> bool:
        client = redis.Redis(port=port, password=password, socket_timeout=1.0, protocol=2, retry=Retry(NoBackoff(), 0))
        deadline = time.monotonic() + _START_WITHIN_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                said = self._log_since(seen)
                if "ddress already in use" in said:
                    return False
                raise VergeError(f"the embedded store in {self.folder} did not start: {_reason(said)}")
            with suppress(redis.exceptions.RedisError, OSError):  # not listening yet, or loading its log
                if client.info("server")["process_id"] == process.pid:
                    client.close()
                    return True
            time.sleep(0.02)
        raise VergeError(f"the embedded store in {self.folder} did not answer within {_START_WITHIN_S:g} s")

    def _log_since(self, offset: int) -> str:
        with suppress(OSError), (self.folder / "server.log").open("rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace")
        return ""

    def stop(self) -> None:
        """Stop the server after it has written everything to disk; harmless when it is not running."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)  # as SHUTDOWN: flushes and fsyncs the log
            try:
                self._process.wait(_STOP_WITHIN_S)
            except subprocess.TimeoutExpired as error:
                raise VergeError(
                    f"the embedded store (pid {self.pid}) is still writing after {_STOP_WITHIN_S:g} s; "
                    f"see {self.folder / 'server.log'}"
                ) from error
        self._process = self._info = None

    def _write_password(self) -> Path:
        path = self.folder / "password"
        if not path.exists():
            _write_atomically(path, secrets.token_urlsafe(24) + "\n", 0o600)
        return path


def read_info(run_dir: Path) -> ServerInfo | None:
    """What the folder's last server left in `server.json`; it need not be alive."""
    path = Path(run_dir) / "store" / "server.json"
    try:
        return ServerInfo(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, TypeError, ValueError) as error:
        raise VergeError(f"{path} is not readable ({error}); delete it if no server runs on this folder") from error


def live_server(run_dir: Path) -> ServerInfo | None:
    """The server that runs on a folder now, whoever started it; None when there is none."""
    lock = Path(run_dir) / "store" / "lock"
    if not lock.exists():
        return None
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return read_info(run_dir)
    return None


def _config(port: int, password: str, fsync: str) -> str:
    """Given on standard input: neither an argument list nor a file shows the password."""
    return f"""\
port {port}
bind 127.0.0.1
requirepass {password}
databases 1
appendonly yes
appendfsync {fsync}
aof-load-truncated yes
save ""
maxmemory-policy noeviction
logfile server.log
dir .
"""


def _lock(descriptor: int, folder: Path) -> None:
    deadline = time.monotonic() + _FREE_WITHIN_S  # a server whose launcher just died is still saving
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                info = read_info(folder.parent)
                where = f" (pid {info.pid}, port {info.port})" if info else ""
                raise VergeError(f"a store is running on {folder} already{where}: is this run up elsewhere?") from error
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _reason(log: str) -> str:
    """The line of a server's log that says why it ended."""
    lines = [line.partition(" ")[2] if line[:1].isdigit() else line for line in log.splitlines() if line.strip()]
    if any("No space left" in line for line in lines):
        return "the disk is full"
    wrong = [line for line in lines if " # " in line or "rror" in line]
    return (wrong or lines or ["it left no log; is the folder writable?"])[-1].strip()


def _write_atomically(path: Path, text: str, mode: int) -> None:
    temporary = path.with_name(path.name + ".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
