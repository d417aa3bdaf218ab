"""The codec: what is stored can be read, and whatever else is read is refused with its own error alone."""

import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from pydantic import ValidationError

from store.config import StoreConfig
from store.errors import CodecError
from store.wire import SCHEMA, Completion, RolloutGroup, Span, Verdict, decode_group, encode_group


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    length = draw(st.integers(0, 20))
    cuts = sorted({0, length, *draw(st.lists(st.integers(0, length), max_size=3))})
    spans = tuple(Span(draw(st.integers(0, 2**53 - 1)), low, high) for low, high in pairwise(cuts))
    return Completion(
        draw(npst.arrays(np.int32, length, elements=st.integers(0, 2**31 - 1))),
        draw(npst.arrays(np.float32, length, elements=st.floats(width=32))),
        spans,
        draw(st.floats(allow_nan=False, allow_infinity=False)),
        draw(st.sampled_from(Verdict)),
        draw(st.text(max_size=10)),
    )


@st.composite
def groups(draw: st.DrawFn) -> RolloutGroup:
    return RolloutGroup(
        f"{draw(st.integers(0, 2**64 - 1))}-{draw(st.integers(0, 9))}",
        draw(st.text(min_size=1, max_size=20)),
        draw(npst.arrays(np.int32, st.integers(0, 9), elements=st.integers(0, 2**31 - 1))),
        tuple(draw(st.lists(completions(), min_size=1, max_size=5))),
    )


def same(one: RolloutGroup, other: RolloutGroup) -> bool:
    return (
        (one.id, one.problem_id, one.prompt_ids.tobytes()) == (other.id, other.problem_id, other.prompt_ids.tobytes())
        and len(one.completions) == len(other.completions)
        and all(
            a.token_ids.tobytes() == b.token_ids.tobytes()
            and a.logprobs.tobytes() == b.logprobs.tobytes()
            and (a.spans, a.reward, a.verdict, a.finish_reason) == (b.spans, b.reward, b.verdict, b.finish_reason)
            for a, b in zip(one.completions, other.completions, strict=True)
        )
    )


@settings(max_examples=40, deadline=None)
@given(groups())
def test_a_group_survives_its_payload_bit_for_bit_nan_included(group: RolloutGroup) -> None:
    decoded = decode_group(encode_group(group))
    assert same(group, decoded)
    assert all(item.logprobs.dtype == np.float32 and item.token_ids.dtype == np.int32 for item in decoded.completions)


@settings(max_examples=60, deadline=None)
@given(groups(), st.data())
def test_any_change_of_a_payload_is_noticed(group: RolloutGroup, data: st.DataObject) -> None:
    payload = bytearray(encode_group(group))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CodecError):
        decode_group(bytes(payload))
    with pytest.raises(CodecError):
        decode_group(bytes(payload[:at]))


OBJECTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=80) | OBJECTS.map(msgpack.packb))
def test_foreign_bytes_raise_the_codecs_own_error(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode_group(data)


@settings(max_examples=80, deadline=None)
@given(groups(), st.lists(st.integers(0, 5), min_size=1, max_size=4), OBJECTS)
def test_a_group_with_a_part_replaced_is_a_group_or_the_codecs_own_error(
    group: RolloutGroup, path: list[int], part: object
) -> None:
    body = msgpack.unpackb(msgpack.unpackb(encode_group(group))[2])
    inside = body
    for step in path[:-1]:
        inner = inside[step % len(inside)]
        if not isinstance(inner, list) or not inner:
            break
        inside = inner
    inside[path[-1] % len(inside)] = part
    packed = msgpack.packb(body)
    try:
        decoded = decode_group(msgpack.packb([SCHEMA, zlib.crc32(packed), packed]))
    except CodecError:
        return
    assert same(decoded, decode_group(encode_group(decoded)))


ONE = Completion(np.array([7, 8], np.int32), np.array([-1, np.nan], np.float32), (Span(3, 0, 2),), 1.0, Verdict.CORRECT)
GROUP = RolloutGroup("17-0", "p", np.array([1], np.int32), (ONE,))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (replace(GROUP, id="seventeen"), "not a ticket id"),
        (replace(GROUP, problem_id=""), "problem id has 0 characters"),
        (replace(GROUP, completions=()), "has 0 completions"),
        (replace(GROUP, prompt_ids=np.array([1.5])), "prompt token ids are float64"),
        (replace(GROUP, prompt_ids=np.array([[1]], np.int32)), r"int32\[1, 1\]"),
        (replace(GROUP, completions=(replace(ONE, token_ids=np.array([-1, 2], np.int32)),)), "negative token id"),
        (replace(GROUP, completions=(replace(ONE, logprobs=np.zeros(1, np.float32)),)), r"float32\[2\]"),
        (replace(GROUP, completions=(replace(ONE, logprobs=np.zeros(2)),)), "log-probs are float64"),
        (replace(GROUP, completions=(replace(ONE, spans=()),)), "spans cover 0 of 2 tokens"),
        (replace(GROUP, completions=(ONE, replace(ONE, spans=(Span(0, 0, 1), Span(1, 0, 2))))), r"1 span 1:\[0, 2\)"),
        (replace(GROUP, completions=(replace(ONE, reward=float("nan")),)), "reward is nan"),
    ],
)  # fmt: skip
def test_a_malformed_group_is_refused_before_it_is_stored(wrong: RolloutGroup, why: str) -> None:
    with pytest.raises(CodecError, match=why):
        encode_group(wrong)


def test_a_payload_of_another_schema_names_both() -> None:
    _, crc, body = msgpack.unpackb(encode_group(GROUP))
    with pytest.raises(CodecError, match="schema 2, this version of Verge reads 1"):
        decode_group(msgpack.packb([2, crc, body]))


def test_counts_leave_errors_out() -> None:
    error = replace(ONE, verdict=Verdict.ERROR, reward=0.0, spans=(Span(1, 0, 2),))
    wrong = replace(ONE, verdict=Verdict.TIMEOUT, reward=0.0, spans=(Span(3, 0, 1), Span(5, 1, 2)))
    group = replace(GROUP, completions=(ONE, error, wrong))
    assert (group.size, group.correct, group.errors, group.tokens) == (2, 1, 1, 4)
    assert (group.version_min, group.version_max) == (3, 5)


def test_the_config_section_refuses_unknown_keys_and_explains_its_fields() -> None:
    assert StoreConfig().url is None
    assert StoreConfig(url="rediss://host:6380/1", password_file=Path("/x")).lease_s == 60
    for wrong in ({"urls": "x"}, {"url": "http://host"}, {"lease_s": 0}, {"fsync": "never"}, {"port": 0}):
        with pytest.raises(ValidationError):
            StoreConfig.model_validate(wrong)
    assert all(field.description for field in StoreConfig.model_fields.values())
