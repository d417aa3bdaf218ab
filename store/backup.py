"""A run's facts out of the store into one file, and back into an empty run, of this store or of another.

Not in the file: what belongs to live processes (the learner's lock, the evaluation that is under way, leases, the
deliveries of a ticket) and what is on disk already (weights, checkpoints). A ticket that was leased is open again in
the imported run.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
from redis import exceptions

from store.client import Store
from store.errors import VergeError
from store.keys import Keys
from store.problems import FACTS, TEXT, chunks, rows
from store.runs import CONSUMERS
from store.statefile import StateWriter, check_state, read_state

_LOGS = ("groups", "refused", "weights_log", "dynamics_log", "evaluations")
_HASHES = ("counters", "used_at", "weights", "dynamics", "actors", "meta")
_ENTRIES = 1000
_RECORDS = 500
_PAYLOADS = 16

# Names in the file are those of store/keys.py, so that the imported run may have another name.


async def export_run(store: Store, path: Path) -> int:
    """Write every fact of the run, as of one instant, even while it trains; returns the number of records.

    The payload of a group that leaves the pool meanwhile is not in the file: in the imported run the group is then
    lost and refunded when it is drawn, as any group whose payload is gone.

    Raises:
        VergeError: the run does not exist, or the file cannot be written.
    """
    keys = store.keys
    if not await store.meta():
        raise VergeError(f"run {keys.run!r} does not exist in this store")
    ends, hashes, groups, problems, (tickets, newest_ticket) = await _snapshot(store)
    with StateWriter(path, keys.run) as out:
        for name, end in zip(_LOGS, ends, strict=True):
            await _write_log(store, out, name, end.decode())
        for chunk in chunks(problems, _RECORDS):
            ids = [problem_id.decode() for problem_id, _ in chunk]
            texts = await store.problem_rows(ids, TEXT)
            for problem_id, text, (_, facts) in zip(ids, texts, chunk, strict=True):
                out.write("problem", problem_id, [*text[:-1], *facts, text[-1]])
        held_out = await store.held_out_ids()  # to which problems are only ever appended
        texts = await rows(store.link, [keys.held_out_problem(name) for name in held_out], TEXT)
        for problem_id, text in zip(held_out, texts, strict=True):
            out.write("held_out", problem_id, text)
        for group_id, fields in groups:
            out.write("group", group_id.decode(), fields)
        out.write("tickets", newest_ticket.decode(), tickets)
        await _write_payloads(store, out, [dict(_pairs(fields))[b"payload"].decode() for _, fields in groups])
        for name, fields in zip(_HASHES, hashes, strict=True):
            out.write("hash", name, fields)
    return out.records


async def _snapshot(store: Store) -> Any:
    keys = store.keys
    names = [keys.live, keys.problems, keys.tickets, *(getattr(keys, name) for name in (*_LOGS, *_HASHES))]
    packed = await store.link.run("snapshot", names, [keys.group(""), keys.problem(""), len(_LOGS), *FACTS])
    return msgpack.unpackb(packed, raw=True, use_list=True)


async def _write_log(store: Store, out: StateWriter, name: str, end: str) -> None:
    after = "-"
    while end:
        read = partial(_read_log, getattr(store.keys, name), after, end)
        entries = await store.link.call(read)
        if not entries:
            return
        out.write("log", name, entries)
        after = f"({entries[-1][0].decode()}"


async def _read_log(key: str, after: str, end: str, redis: Any) -> Any:
    return await redis.xrange(key, min=after, max=end, count=_ENTRIES)


async def _write_payloads(store: Store, out: StateWriter, ids: Sequence[str]) -> None:
    for chunk in chunks(ids, _PAYLOADS):
        found = await store.link.call(partial(_read_payloads, [store.keys.payload(name) for name in chunk]))
        for name, payload in zip(chunk, found, strict=True):
            if payload is not None:
                out.write("payload", name, payload)


async def _read_payloads(names: Sequence[str], redis: Any) -> Any:
    pipe = redis.pipeline(transaction=False)
    for name in names:
        pipe.get(name)
    return await pipe.execute()


async def import_run(store: Store, path: Path) -> int:
    """Fill an empty run from an exported file; returns the number of records.

    A run exists once its meta does, which is written last: an import that was cut short is not a run, and is begun
    anew by importing the same file again.

    Raises:
        VergeError: as `check_state`; the run is not empty; another import into it was cut short; or the store went
            away.
    """
    checksum = check_state(path)
    keys = store.keys
    written, last = 0, []
    try:
        await _claim(store, checksum)
        for chunk in chunks(read_state(path), _RECORDS):
            pipe = store.link.redis.pipeline(transaction=False)
            for record in chunk:
                if record[:2] == ("hash", "meta"):
                    last = record[2]
                else:
                    _put(pipe, keys, *record)
            await pipe.execute()
            written += len(chunk)
        await store.link.redis.hset(keys.meta, items=last)
        await store.link.redis.delete(keys.importing)
    except (exceptions.RedisError, OSError) as error:
        why = store.link.in_words(error) if isinstance(error, exceptions.RedisError) else error
        raise VergeError(f"the import was cut short ({why}); give the same command again") from error
    return written


async def _claim(store: Store, checksum: str) -> None:
    """Mark the run as being imported; clear what an earlier attempt with the same file left."""
    keys, redis = store.keys, store.link.redis
    begun = await store.link.call(lambda redis: redis.get(keys.importing))
    if begun is not None and begun.decode() != checksum:
        raise VergeError(
            f"an import of another file into run {keys.run!r} was cut short; import that file again, "
            "or choose another run name"
        )
    if begun is None and await redis.exists(keys.meta, keys.problems, keys.tickets, keys.groups):
        raise VergeError(f"run {keys.run!r} is not empty; import into a run of another name, or into an empty store")
    await redis.set(keys.importing, checksum)
    lists = (keys.problems, keys.held_out, keys.tickets, keys.live)
    await redis.unlink(*lists, *(getattr(keys, name) for name in (*_LOGS, *_HASHES)))


def _put(pipe: Any, keys: Keys, kind: str, name: str, value: Any) -> None:
    """Queue the commands that restore one record."""
    if kind == "log" and name in _LOGS:
        _add_entries(pipe, getattr(keys, name), value)
    elif kind == "hash" and name in _HASHES:
        if value:
            pipe.hset(getattr(keys, name), items=value)
    elif kind == "problem":
        names = (*TEXT[:-1], *FACTS, TEXT[-1])  # the limits last: a file written before there were any ends here
        fields = [item for field, stored in zip(names, value, strict=False) if stored is not False
                  for item in (field, stored)]  # fmt: skip
        pipe.hset(keys.problem(name), items=fields)
        pipe.rpush(keys.problems, name)
    elif kind == "held_out":
        pipe.hset(keys.held_out_problem(name), items=[item for pair in zip(TEXT, value, strict=True) for item in pair])
        pipe.rpush(keys.held_out, name)
    elif kind == "group":
        pipe.hset(keys.group(name), items=value)
        pipe.sadd(keys.live, name)
    elif kind == "payload":
        pipe.set(keys.payload(name), value)
    elif kind == "tickets":
        pipe.xgroup_create(keys.tickets, CONSUMERS, id="0", mkstream=True)
        _add_entries(pipe, keys.tickets, value)
        pipe.execute_command("XSETID", keys.tickets, name)  # ids of ended tickets are those of groups: never again
    else:
        raise VergeError(f"the file holds a record {kind} {name[:40]}, which this version of Verge does not know")


def _add_entries(pipe: Any, key: str, entries: Sequence[Any]) -> None:
    for stream_id, fields in entries:
        pipe.execute_command("XADD", key, stream_id, *fields)


def _pairs(fields: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(fields[::2], fields[1::2], strict=True)
