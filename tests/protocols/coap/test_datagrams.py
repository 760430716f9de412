"""What is read of a DTLS datagram before anything of it is proven."""

from hypothesis import given
from hypothesis import strategies as st

from protocols.coap.datagrams import is_client_hello, psk_identity, records

_bodies = st.lists(st.binary(max_size=50), max_size=4)


def _record(body: bytes) -> bytes:
    return b"\x17\xfe\xfd" + bytes(8) + len(body).to_bytes(2, "big") + body


@given(_bodies)
def test_records_are_taken_apart(bodies: list[bytes]) -> None:
    whole = [_record(body) for body in bodies]
    assert records(b"".join(whole)) == whole


@given(_bodies, st.binary(max_size=50), st.data())
def test_a_record_that_is_cut_short_is_left_out(bodies: list[bytes], body: bytes, data: st.DataObject) -> None:
    whole = [_record(one) for one in bodies]
    last = _record(body)
    end = data.draw(st.integers(0, len(last) - 1))
    assert records(b"".join(whole) + last[:end]) == whole


@given(st.binary(max_size=200))
def test_anything_can_be_read(datagram: bytes) -> None:
    found = records(datagram)
    assert b"".join(found) == datagram[: sum(map(len, found))]
    psk_identity(found)
    is_client_hello(datagram)


def test_an_encrypted_record_is_no_hello() -> None:
    """Its 14th byte is the first of a nonce, and may be anything."""
    hello = b"\x16\xfe\xfd" + b"\0\0" + bytes(6) + b"\0\x01" + b"\x01"
    assert is_client_hello(hello)
    assert not is_client_hello(hello[:3] + b"\0\x01" + hello[5:])
