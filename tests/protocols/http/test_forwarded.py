"""Which of the addresses in a request is the client's."""

from ipaddress import ip_network

import pytest

from protocols.http.forwarded import Forwarded
from protocols.streams.proxies import TrustedProxies

PROXIES = TrustedProxies((ip_network("10.0.0.0/8"), ip_network("2001:db8:1::/48")))
PROXY = "10.0.0.1"


def client(*headers: tuple[str, str]) -> str:
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers]
    return Forwarded(encoded).client(PROXY, PROXIES)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("203.0.113.7, 10.0.0.2", "203.0.113.7"),
        ("6.6.6.6, 203.0.113.7", "203.0.113.7"),
        ("6.6.6.6, 203.0.113.7, 10.0.0.2, 10.0.0.3", "203.0.113.7"),
        ("10.0.0.9, 10.0.0.2", "10.0.0.9"),
        ("203.0.113.7:54321", "203.0.113.7"),
        ("2001:db8::7", "2001:db8::7"),
        ("[2001:db8::7]:54321", "2001:db8::7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("203.0.113.7, 2001:db8:1::2", "203.0.113.7"),
        ("6.6.6.6, unknown", PROXY),
        ("6.6.6.6, unknown, 10.0.0.2", "10.0.0.2"),
        ("6.6.6.6, ", PROXY),
        ("nonsense", PROXY),
        ("6.6.6.6, " + "a" * 50_000, PROXY),
        ("6.6.6.6, " + ", ".join(["10.0.0.2"] * 100), "10.0.0.2"),
    ],
)
def test_the_client_is_the_last_address_that_is_no_trusted_proxy(value: str, expected: str) -> None:
    assert client(("X-Forwarded-For", value)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("for=203.0.113.7", "203.0.113.7"),
        ('For="203.0.113.7:54321";proto=https', "203.0.113.7"),
        ('proto=https; for="[2001:db8::7]:54321"', "2001:db8::7"),
        ('for="[2001:db8::7]"', "2001:db8::7"),
        ('for="6.6.6.6", for=203.0.113.7;by=10.0.0.1', "203.0.113.7"),
        ('for="6.6.6.6, for=203.0.113.7', "203.0.113.7"),  # a quotation that the client does not close
        ("for=203.0.113.7, for=10.0.0.2", "203.0.113.7"),
        ("for=_hidden", PROXY),
        ("by=203.0.113.7", PROXY),
        ("proto=https;xfor=6.6.6.6", PROXY),
    ],
)
def test_the_standard_header_is_read_alike(value: str, expected: str) -> None:
    assert client(("Forwarded", value)) == expected


def test_lines_of_a_header_are_one_list() -> None:
    assert client(("X-Forwarded-For", "6.6.6.6"), ("X-Forwarded-For", "203.0.113.7")) == "203.0.113.7"


def test_two_headers_that_agree_count() -> None:
    assert client(("X-Forwarded-For", "203.0.113.7"), ("Forwarded", "for=203.0.113.7")) == "203.0.113.7"


def test_a_header_that_the_proxy_does_not_set_cannot_name_a_client() -> None:
    assert client(("X-Forwarded-For", "203.0.113.7"), ("Forwarded", "for=6.6.6.6")) == PROXY
    assert client(("X-Forwarded-For", "6.6.6.6"), ("Forwarded", "for=203.0.113.7")) == PROXY


def test_without_headers_the_client_is_the_proxy() -> None:
    assert client(("Host", "example.org")) == PROXY


@pytest.mark.parametrize(
    ("name", "value", "is_https"),
    [
        ("X-Forwarded-Proto", "https", True),
        ("X-Forwarded-Proto", "http", False),
        ("X-Forwarded-Proto", "https, http", False),
        ("Forwarded", "for=203.0.113.7;proto=https", True),
        ("Forwarded", "for=203.0.113.7;proto=http", False),
        ("Forwarded", "for=203.0.113.7", None),
        ("Host", "example.org", None),
    ],
)
def test_the_scheme_is_that_of_the_last_proxy(name: str, value: str, is_https: bool | None) -> None:
    assert Forwarded([(name.lower().encode(), value.encode())]).is_https is is_https
