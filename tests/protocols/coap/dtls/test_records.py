"""The records of DTLS datagrams, as read before authentication."""

from hypothesis import given
from hypothesis import strategies as st

from protocols.coap.dtls.records import hello_key, is_client_hello, psk_identity, records, session_id

_bodies = st.lists(st.binary(min_size=1, max_size=50), max_size=4)


def _record(body: bytes) -> bytes:
    return b"\x17\xfe\xfd" + bytes(8) + len(body).to_bytes(2, "big") + body


@given(_bodies)
def test_a_datagram_is_split_into_records(bodies: list[bytes]) -> None:
    whole = [_record(body) for body in bodies]
    assert records(b"".join(whole)) == whole


def test_empty_records_and_too_many_are_left_out() -> None:
    """Each record costs a call into GnuTLS."""
    assert records(_record(b"") * 5 + _record(b"x")) == [_record(b"x")]
    assert len(records(_record(b"x") * 200)) == 32


@given(_bodies, st.binary(min_size=1, max_size=50), st.data())
def test_a_truncated_record_is_left_out(bodies: list[bytes], body: bytes, data: st.DataObject) -> None:
    whole = [_record(one) for one in bodies]
    last = _record(body)
    end = data.draw(st.integers(0, len(last) - 1))
    assert records(b"".join(whole) + last[:end]) == whole


@given(st.binary(max_size=200))
def test_no_datagram_raises(datagram: bytes) -> None:
    for record in records(datagram):
        psk_identity(record)
        is_client_hello(record)
        if is_client_hello(record):
            session_id(record)


@given(st.binary(max_size=32), st.integers(0, 40))
def test_the_session_that_a_hello_asks_for(id_: bytes, cut: int) -> None:
    """The hello may end too early, or have its session in a field that is too long."""
    hello = HELLO[:59] + bytes([len(id_)]) + id_ + b"\x04cook\0\x02\xc0\xa8\x01\0"
    assert session_id(hello) == id_
    assert len(session_id(hello[: max(60, len(hello) - cut)])) <= len(id_)
    assert session_id(HELLO[:59] + b"\xff" + id_) == id_


HELLO = b"\x16\xfe\xfd" + bytes(8) + b"\0\x36" + b"\x01" + bytes(53)


def test_an_encrypted_record_is_no_hello() -> None:
    """Its 14th byte is the first of a nonce, which may equal any type of message."""
    assert is_client_hello(HELLO)
    assert not is_client_hello(HELLO[:3] + b"\0\x01" + HELLO[5:])


def test_a_record_that_is_too_short_is_no_hello() -> None:
    """The answer would be longer than the record, and its address may be spoofed."""
    assert not is_client_hello(HELLO[:11] + b"\0\x10" + HELLO[13:29])


def test_a_retransmitted_hello_has_the_same_key() -> None:
    """Another cookie makes another key: a device may send the same random number after each start."""
    again = HELLO[:10] + b"\x05" + HELLO[11:]
    assert hello_key(again) == hello_key(HELLO)
    assert hello_key(HELLO[:65] + b"x" + HELLO[66:]) != hello_key(HELLO)
