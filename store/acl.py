"""What each role of a run needs of Redis, and no more: rules for `ACL SETUSER`."""

import hashlib
from collections.abc import Mapping
from typing import Literal

from store.keys import Keys

Role = Literal["actor", "learner", "reader"]

_CONNECT = (
    "ping",
    "info",
    "script|load",
    "evalsha_ro",
    "command",
    "command|getkeys",
    "cluster|slots",
    "cluster|shards",
)
_READ = ("get", "hget", "hmget", "hgetall", "lrange", "smembers", "xrange", "xrevrange", "xread", "xlen", "xpending",
         "xinfo|stream")  # fmt: skip
_ROLL_OUT = ("get", "hget", "hmget", "lrange", "xrange", "xrevrange", "xread", "xpending", "xinfo|groups", "evalsha",
             "set", "persist", "del", "unlink", "hset", "hincrby", "sadd", "xadd", "xack", "xdel", "xclaim",
             "xautoclaim", "xreadgroup")  # fmt: skip
_TRAIN = ("exists", "hdel", "scard", "hsetnx", "rpush", "srem", "srandmember", "pexpire", "multi", "exec",
          "xgroup|create", "xsetid")  # fmt: skip

_COMMANDS: dict[Role, tuple[str, ...]] = {
    "reader": _CONNECT + _READ,
    "actor": _CONNECT + _ROLL_OUT,
    "learner": _CONNECT + _READ + _ROLL_OUT + _TRAIN,
}


def rules(keys: Keys, role: Role) -> list[str]:
    """The rules of a role on one run, without a password: no other key, no other command.

    reader: asks, changes nothing. actor: takes tickets, commits groups, evaluates, sends heartbeats; it can change
    neither weights nor meta, and reads no payload. learner: everything in the run, as `verge up` needs it.
    """
    commands = sorted(set(_COMMANDS[role]))
    return ["resetkeys", "resetchannels", "nocommands", *_patterns(keys, role), *(f"+{name}" for name in commands)]


def acl_file(keys: Keys, passwords: Mapping[Role, str]) -> str:
    """The text of a server's `aclfile` with these roles of one run; nobody else, and no password in clear."""
    lines = ["user default off"]
    for role, password in passwords.items():
        digest = hashlib.sha256(password.encode()).hexdigest()
        lines.append(" ".join([f"user {user(keys, role)}", "on", f"#{digest}", *rules(keys, role)]))
    return "\n".join(lines) + "\n"


def user(keys: Keys, role: Role) -> str:
    """The server's name for a role of a run."""
    return f"{keys.run}-{role}"


def _patterns(keys: Keys, role: Role) -> list[str]:
    everything, payloads = f"{keys.prefix}*", keys.payload("*")
    if role == "reader":
        return [f"%R~{everything}", f"%R~{payloads}"]
    if role == "learner":
        return [f"~{everything}", f"~{payloads}"]
    written = (keys.tickets, keys.counters, keys.refused, keys.groups, keys.live, keys.actors, keys.evaluating,
               keys.evaluations, keys.problem("*"), keys.group("*"))  # fmt: skip
    read = (keys.meta, keys.weights_log, keys.held_out, keys.held_out_problem("*"))
    return [
        *(f"~{name}" for name in written),
        *(f"%R~{name}" for name in read),
        f"%W~{payloads}",
    ]
