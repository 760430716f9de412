"""CBOR as JSON: values without an equivalent in JSON are refused, and so are small ones that would become large."""

import json

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadRequest, BodyTooLarge, TooManyAttempts
from config.limits import COAP_BODY_BYTES
from protocols.coap.messages import CBOR, Option, uint
from protocols.coap.requests import cbor_to_json, json_to, refusal
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
def test_every_tag_is_refused(value: bytes) -> None:
    for tag in (*range(2000), 43_000, 55_799, 65_535, 2**32):
        tagged = cbor2.dumps(cbor2.CBORTag(tag, None))[:-1] + value
        with pytest.raises(BadRequest):
            cbor_to_json(tagged)


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
    answer = refusal(TooManyAttempts(retry_seconds=300), None)
    assert (answer.code, answer.options) == (0x9D, ((Option.MAX_AGE, uint(300)),))
    assert json.loads(answer.body)["error"]["code"] == 429


def test_too_large_has_the_largest_size() -> None:
    """RFC 7959, 2.9.3."""
    answer = refusal(BodyTooLarge(), None)
    assert (answer.code, answer.options) == (0x8D, ((Option.SIZE1, uint(COAP_BODY_BYTES)),))
