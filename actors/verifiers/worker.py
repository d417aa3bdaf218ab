"""The process that runs verifiers of the user's. Started by `actors.verifiers.pool`; standard library only.

It has one socket to its pool, the file descriptor in its first argument; the second is its parent's process id. Frames
are 4 bytes of length, big-endian, and JSON: one with the path and the memory limit, then `import` and `function`
frames, each of which has one reply, and `keep` frames without one, each followed by the bytes of a spec. Standard
input, output and error are /dev/null: nothing that a verifier prints reaches or blocks anyone.
"""

import ctypes
import importlib
import json
import marshal
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

MESSAGE_CHARACTERS = 400
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve checks until the pool closes the socket."""
    _die_with_parent(int(sys.argv[2]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    setup = _receive(channel)
    if setup is None:
        return
    sys.path[:] = setup["path"]
    functions: dict[str, Callable[..., Any]] = {}
    specs: dict[int, bytes | bytearray] = {}
    while (frame := _receive(channel)) is not None:
        if "import" in frame:
            _send(channel, _import(functions, frame["import"], setup["memory_bytes"]))
        elif "keep" in frame:
            for key in frame["drop"]:
                del specs[key]
            specs[frame["keep"]] = _read(channel, frame["bytes"]) or b""
        else:
            _send(channel, _run(functions[frame["function"]], specs[frame["spec"]], frame["completion"]))


def _import(functions: dict[str, Callable[..., Any]], name: str, memory_bytes: int) -> dict[str, Any]:
    """Import with the limit lifted, then set it to what is in use now and `memory_bytes` more."""
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    try:
        functions[name] = _load(name)
    except BaseException as error:
        return {"error": _clip(str(error))}
    with open("/proc/self/statm") as file:
        limit = int(file.read().split()[0]) * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    return {"ready": True}


def _load(name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:  # whatever a module does when it is imported, its name must reach a person
        raise ImportError(f"module {module_name} cannot be imported: {_say(error)}") from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ImportError(f"module {module_name} has no function {function_name}")
    return function  # type: ignore[no-any-return]


def _run(function: Callable[..., Any], spec: bytes | bytearray, completion: str) -> dict[str, Any]:
    try:
        # Decoded anew for each check: a verifier that changes its problem must not change the next one's.
        result = function(marshal.loads(spec), completion)  # noqa: S302 - our own parent wrote it
        if isinstance(result, str) and result == "timeout":
            return {"timeout": True}
        if result not in (0, 1):
            return {"error": f"returned {_clip(repr(result))}, must be True, False, 1, 0 or timeout"}
        return {"correct": bool(result)}
    except MemoryError:
        return {"error": "ran out of memory (verifier.memory_limit_mib)", "replace": True}
    except BaseException as error:  # SystemExit too: the verifier has failed, the answer has not
        return {"error": _say(error)}


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _receive(channel: socket.socket) -> Any:
    header = _read(channel, 4)
    return None if header is None else json.loads(_read(channel, struct.unpack(">I", header)[0]) or b"null")


def _read(channel: socket.socket, size: int) -> bytearray | None:
    data = bytearray()
    while len(data) < size:
        part = channel.recv(size - len(data))
        if not part:
            return None
        data += part
    return data


def _send(channel: socket.socket, reply: dict[str, Any]) -> None:
    body = json.dumps(reply).encode()
    channel.sendall(struct.pack(">I", len(body)) + body)


def _say(error: BaseException) -> str:
    return _clip(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _clip(text: str) -> str:
    return " ".join(text[:MESSAGE_CHARACTERS].split())


if __name__ == "__main__":
    main()
