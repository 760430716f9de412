"""CBOR as JSON: values without an equivalent in JSON are refused, and so are small ones that would become large."""

import json
import math

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadRequest, BodyTooLarge, TooManyAttempts
from config.limits import COAP_BODY_BYTES
from protocols.coap.messages import CBOR, Option, uint
from protocols.coap.requests import cbor_to_json, json_to, refusal_response
from tests.rows import each_row

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_round_trip(value: object) -> None:
    assert json.loads(cbor_to_json(cbor2.dumps(value))) == value
    assert cbor2.loads(json_to(CBOR, json.dumps(value).encode())) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_cbor_or_refused(payload: bytes) -> None:
    try:
        found = cbor_to_json(payload)
    except BadRequest:
        return
    json.loads(found)


@each_row("value", [b"\x00", b"\x60", b"\x80", b"\x82\x00\x00", b"\x41a", b"\x61a", b"\xa0"])
def test_every_tag_but_those_of_numbers_is_refused(value: bytes) -> None:
    for tag in (0, 1, *range(6, 2000), 43_000, 65_535, 2**32):
        tagged = cbor2.dumps(cbor2.CBORTag(tag, None))[:-1] + value
        with pytest.raises(BadRequest):
            cbor_to_json(tagged)


@each_row(
    ("payload", "text"),
    [
        (cbor2.CBORTag(2, b"\x01\x00"), "256"),
        (cbor2.CBORTag(3, b"\x01\x00"), "-257"),
        (cbor2.CBORTag(2, b"\xff" * 8), str(2**64 - 1)),
        (cbor2.CBORTag(2, b"\x01" + bytes(12)), str(2**96)),
        (cbor2.CBORTag(4, [-2, 27315]), "273.15"),
        (cbor2.CBORTag(4, [2, 3]), "300"),
        (cbor2.CBORTag(4, [-1, 30]), "3"),
        (cbor2.CBORTag(4, [-400, 1]), "0.0"),
        (cbor2.CBORTag(4, [-(2**63), -1]), "0.0"),
        (cbor2.CBORTag(4, [2**63, 0]), "0"),
        (cbor2.CBORTag(5, [-1, 3]), "1.5"),
        (cbor2.CBORTag(5, [-2, cbor2.CBORTag(2, b"\x05")]), "1.25"),
        (cbor2.CBORTag(55_799, {"a": cbor2.CBORTag(55_799, 1)}), '{"a":1}'),
        # Values that JSON has no number for.
        (cbor2.CBORTag(2, b"\xff" * 1000), '"Infinity"'),
        (cbor2.CBORTag(3, b"\xff" * 1000), '"-Infinity"'),
        (cbor2.CBORTag(4, [2**63, -1]), '"-Infinity"'),
        (cbor2.CBORTag(4, [400, 1]), '"Infinity"'),
        (cbor2.CBORTag(5, [1100, -1]), '"-Infinity"'),
        (cbor2.CBORTag(4, [1, cbor2.CBORTag(2, b"\xff" * 1000)]), '"Infinity"'),
        ({"d": math.nan, "e": [math.inf, None], "f": -math.inf}, '{"d":"NaN","e":["Infinity",null],"f":"-Infinity"}'),
    ],
)
def test_numbers_with_tags_and_those_that_are_not_finite(payload: object, text: str) -> None:
    """Issue 44, 6."""
    assert cbor_to_json(cbor2.dumps(payload)).decode() == text


@each_row(
    "value",
    [b"\x01", b"\x60", b"\x81\x01", b"\x83\x01\x01\x01", b"\x82\xf9\x3e\x00\x01", b"\x82\x01\x60", b"\x82\x01\xf5"],
)
def test_what_is_no_fraction_is_refused(value: bytes) -> None:
    for tag in (4, 5):
        with pytest.raises(BadRequest):
            cbor_to_json(bytes((0xC0 | tag,)) + value)


def test_half_of_a_surrogate_pair_is_kept_for_the_manifest_to_drop() -> None:
    """CBOR is treated as an escape in JSON is. Other bytes that are not UTF-8 are refused, as in JSON."""
    half, other = b"\xa2\x61a\x63\xed\xa0\x80\x61b\x42\xed\xa0", b"\xa1\x61a\x61\xff"
    assert cbor_to_json(half) == b'{"a":"' + b"\\ud800" * 3 + b'","b":"7aA="}'
    with pytest.raises(BadRequest):
        cbor_to_json(other)


def test_half_of_a_surrogate_pair_in_an_action_is_replaced() -> None:
    """An Action is stored as its sender wrote it, and a text of CBOR is UTF-8 (RFC 8949, 3.1)."""
    sent = rb'{"a\udc00":["\ud800x","\ud83d\ude00\ud83d"],"b":1e999}'
    expected = {"a\ufffd": ["\ufffdx", "\U0001f600\ufffd"], "b": math.inf}
    assert cbor2.loads(json_to(CBOR, sent)) == expected


def test_an_array_that_contains_itself_is_refused() -> None:
    """These 187 bytes would become 16 MiB of JSON."""
    bomb = b"\x95\xd8\x1c\x81\x61x"
    for number in range(20):
        reference = b"\xd8\x1d" + bytes((number,))
        bomb += b"\xd8\x1c\x82" + reference * 2
    with pytest.raises(BadRequest):
        cbor_to_json(bomb)


@pytest.mark.parametrize("junk", [b"\x00", b"\xff", b"\xa0", b" ", bytes(5000)])
def test_bytes_after_the_value_are_refused(junk: bytes) -> None:
    with pytest.raises(BadRequest):
        cbor_to_json(cbor2.dumps({"data": {"state": True}}) + junk)


def test_bytes_and_numbers_as_keys_become_text() -> None:
    assert json.loads(cbor_to_json(cbor2.dumps({1: b"bytes"}))) == {"1": "Ynl0ZXM="}


def test_a_limit_has_the_time_to_wait() -> None:
    answer = refusal_response(TooManyAttempts(retry_seconds=300), None)
    assert (answer.code, answer.options) == (0x9D, ((Option.MAX_AGE, uint(300)),))
    assert json.loads(answer.body)["error"]["code"] == 429


def test_too_large_has_the_largest_size() -> None:
    """RFC 7959, 2.9.3."""
    answer = refusal_response(BodyTooLarge(), None)
    assert (answer.code, answer.options) == (0x8D, ((Option.SIZE1, uint(COAP_BODY_BYTES)),))
