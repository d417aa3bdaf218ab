"""What crosses a process boundary: every type of the store's API, and the one codec of rollout groups.

A payload is msgpack `[SCHEMA, crc32(body), body]`; `body` is the msgpack of one group. Arrays travel as little-endian
bytes, so that a NaN stays the same NaN. Encoding checks what decoding checks: what is stored can be read.
"""

import math
import re
import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple, TypedDict

import msgpack
import numpy as np
from numpy.typing import NDArray

from store.errors import CodecError

SCHEMA = 1
MAX_COMPLETIONS = 4096
MAX_TOKENS = 1 << 20  # of a prompt, and of each completion
MAX_BYTES = 256 << 20
MAX_TEXT = 4096  # characters of an id or a finish reason

Json = Any
"""A JSON value."""

_TICKET_ID = re.compile(r"\d{1,20}-\d{1,20}")


class Message(TypedDict):
    """One turn of a chat prompt."""

    role: str
    content: str


class Verdict(StrEnum):
    """What the verifier said. `ERROR` is the verifier's or the engine's fault: not evidence, not trained on."""

    CORRECT = "correct"
    WRONG = "wrong"
    TRUNCATED = "truncated"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Problem:
    """A prompt with a verifier. `answer` holds the verifier's parameters; `id` is the user's, unique in a run.

    A limit of its own takes the place of the run's: completion tokens, seconds of one check.
    """

    id: str
    prompt: str | tuple[Message, ...]
    verifier: str
    answer: Json = None
    tags: tuple[str, ...] = ()
    max_completion_tokens: int | None = None
    time_limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProblemFacts:
    """What a run knows of one problem. `a`, `b` are discounted to `version`, without the prior (DESIGN §4).

    `first_success`, `last_success`, `last_seen` are ids of the groups stream (milliseconds-sequence), "" for never.
    """

    attempts: int = 0
    successes: int = 0
    evidence_a: float = 0.0
    evidence_b: float = 0.0
    version: int = 0
    groups: int = 0
    first_success: str = ""
    last_success: str = ""
    last_seen: str = ""


@dataclass(frozen=True, slots=True)
class Ticket:
    """Permission to roll one problem out once. `deliveries` counts the actors it was given to, this one included."""

    id: str
    problem_id: str
    deliveries: int = 1


@dataclass(frozen=True, slots=True)
class Span:
    """Completion tokens [start, end) were written by the weights of `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One sampled answer: T token ids, and log μ(token) in nats as the engine sampled it (NaN: missing)."""

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    spans: tuple[Span, ...]
    reward: float
    verdict: Verdict
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True, eq=False)
class RolloutGroup:
    """The completions of one problem from one ticket, whose id is the group's. `prompt_ids` [P] int32."""

    id: str
    problem_id: str
    prompt_ids: NDArray[np.int32]
    completions: tuple[Completion, ...]

    @property
    def evidence(self) -> tuple[Completion, ...]:
        """The completions whose verdict is not `error`: what counts and what is trained on."""
        return tuple(item for item in self.completions if item.verdict is not Verdict.ERROR)

    @property
    def size(self) -> int:
        """G, the number of completions whose verdict is not `error`."""
        return len(self.evidence)

    @property
    def correct(self) -> int:
        """c, the correct among them."""
        return sum(item.verdict is Verdict.CORRECT for item in self.completions)

    @property
    def errors(self) -> int:
        """Completions that are not evidence."""
        return len(self.completions) - self.size

    @property
    def version_min(self) -> int:
        """The oldest version that wrote a token of the evidence. ValueError where there is no token."""
        return min(span.version for item in self.evidence for span in item.spans)

    @property
    def version_max(self) -> int:
        """The newest version that wrote a token of the evidence. ValueError where there is no token."""
        return max(span.version for item in self.evidence for span in item.spans)

    @property
    def tokens(self) -> int:
        """Completion tokens of the evidence."""
        return sum(len(item.token_ids) for item in self.evidence)


class GroupEntry(NamedTuple):
    """The index facts of a committed group, as they stand in the groups stream; `time_s` is the server's clock.

    A tuple, because a mirror makes 10^5 of them, and a frozen dataclass takes several times as long to make.
    """

    id: str
    stream_id: str
    problem_id: str
    G: int
    c: int
    version_min: int
    version_max: int
    tokens: int
    time_s: float


@dataclass(frozen=True, slots=True)
class Manifest:
    """A published snapshot of the weights: `version` counts them, 0 is the base model; `step` is the learner's.

    `path` is a folder: with the weights file, or, of `format` "delta", with what changed since the version `base` (−1
    for none). `sha256` is the weights file's either way; `bytes` are those of the file that is there.
    """

    version: int
    path: str
    sha256: str
    bytes: int
    step: int
    time_s: float
    format: Literal["full", "delta"] = "full"
    base: int = -1


def encode_group(group: RolloutGroup) -> bytes:
    """The payload of a group. CodecError when it breaks a rule that `decode_group` would refuse."""
    _check(group)
    body = msgpack.packb(
        [
            group.id,
            group.problem_id,
            _little(group.prompt_ids, "<i4"),
            [
                [
                    _little(item.token_ids, "<i4"),
                    _little(item.logprobs, "<f4"),
                    [[int(span.version), int(span.start), int(span.end)] for span in item.spans],
                    float(item.reward),
                    item.verdict.value,
                    item.finish_reason,
                ]
                for item in group.completions
            ],
        ]
    )
    return bytes(msgpack.packb([SCHEMA, zlib.crc32(body), body]))


def decode_group(payload: bytes) -> RolloutGroup:
    """The group of a payload, its arrays read-only views. CodecError, and nothing else, for any other bytes."""
    if len(payload) > MAX_BYTES:
        raise CodecError(f"payload has {len(payload)} bytes, the limit is {MAX_BYTES}")
    match _unpack(payload):
        case [int(schema), *_] if schema != SCHEMA:
            raise CodecError(f"payload has schema {schema}, this version of Verge reads {SCHEMA}")
        case [_, int(crc), bytes(body)] if crc == zlib.crc32(body):
            pass
        case [_, int(), bytes()]:
            raise CodecError("payload is corrupted: its checksum does not match")
        case _:
            raise CodecError("payload is not a rollout group")
    match _unpack(body):
        case [str(group_id), str(problem_id), bytes(prompt), [*completions]]:
            group = RolloutGroup(group_id, problem_id, _array(prompt, "<i4"), tuple(map(_completion, completions)))
        case _:
            raise CodecError("payload is not a rollout group")
    _check(group)
    return group


def _completion(item: object) -> Completion:
    match item:
        case [bytes(tokens), bytes(logprobs), [*spans], float(reward), str(verdict), str(finish)]:
            if verdict not in Verdict.__members__.values():
                raise CodecError(f"payload has the unknown verdict {verdict[:40]!r}")
            where = tuple(map(_span, spans))
            return Completion(_array(tokens, "<i4"), _array(logprobs, "<f4"), where, reward, Verdict(verdict), finish)
    raise CodecError("payload has a malformed completion")


def _span(item: object) -> Span:
    match item:
        case [int(version), int(start), int(end)]:
            return Span(version, start, end)
    raise CodecError("payload has a malformed version span")


def _unpack(data: bytes) -> object:
    try:
        return msgpack.unpackb(data, use_list=True, strict_map_key=True)
    except Exception as error:  # msgpack raises ValueError, its own errors, UnicodeDecodeError, RecursionError …
        raise CodecError(f"payload is not msgpack: {type(error).__name__}") from error


def _little(array: NDArray[Any], dtype: str) -> bytes:
    return bytes(array.astype(dtype, copy=False).tobytes())


def _array(data: bytes, dtype: str) -> NDArray[Any]:
    if len(data) % 4:
        raise CodecError(f"payload has an array of {len(data)} bytes, not a multiple of 4")
    return np.frombuffer(data, dtype)


def _check(group: RolloutGroup) -> None:
    """The rules of a group; CodecError names the first that is broken."""

    def refuse(why: str) -> None:
        raise CodecError(f"rollout group {group.id[:40]!r}: {why}")

    if not _TICKET_ID.fullmatch(group.id):
        refuse("its id is not a ticket id, digits-digits")
    if not 0 < len(group.problem_id) <= MAX_TEXT:
        refuse(f"its problem id has {len(group.problem_id)} characters, must be 1 to {MAX_TEXT}")
    if not 0 < len(group.completions) <= MAX_COMPLETIONS:
        refuse(f"it has {len(group.completions)} completions, must be 1 to {MAX_COMPLETIONS}")
    if why := _wrong_tokens(group.prompt_ids):
        refuse(f"prompt {why}")
    for number, item in enumerate(group.completions):
        if why := _wrong_tokens(item.token_ids) or _wrong_completion(item):
            refuse(f"completion {number} {why}")
    # One pass over all tokens at once: eight small reductions would cost more than the rest of the codec.
    tokens = np.concatenate([group.prompt_ids, *(item.token_ids for item in group.completions)])
    if tokens.size and int(tokens.min()) < 0:
        refuse("it has a negative token id")


def _wrong_tokens(tokens: NDArray[np.int32]) -> str:
    if tokens.ndim != 1 or tokens.dtype != np.int32:
        return f"token ids are {tokens.dtype}{list(tokens.shape)}, must be int32[T]"
    return f"has {len(tokens)} tokens, the limit is {MAX_TOKENS}" if len(tokens) > MAX_TOKENS else ""


def _wrong_completion(item: Completion) -> str:
    length, end = len(item.token_ids), 0
    if item.logprobs.shape != (length,) or item.logprobs.dtype != np.float32:
        return f"log-probs are {item.logprobs.dtype}{list(item.logprobs.shape)}, must be float32[{length}]"
    for span in item.spans:
        if span.start != end or span.end <= end or not 0 <= span.version < 2**53:
            return f"span {span.version}:[{span.start}, {span.end}) does not continue from token {end}"
        end = span.end
    if end != length:
        return f"spans cover {end} of {length} tokens"
    if not math.isfinite(item.reward):
        return f"reward is {item.reward}"
    return f"finish reason has {len(item.finish_reason)} characters" if len(item.finish_reason) > MAX_TEXT else ""
