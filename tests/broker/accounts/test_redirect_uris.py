"""Properties of redirect URIs and of PKCE verifiers that hold for every text."""

import string
from urllib.parse import parse_qs

from authlib.oauth2.rfc7636 import create_s256_code_challenge
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.accounts.applications import Application
from broker.accounts.grants import S256, VERIFIER
from broker.accounts.redirects import with_parameters
from storage.keys import ApplicationKey, OrganizationKey
from storage.records import ApplicationRecord
from tests.broker.accounts.oauth_world import challenge_of, query_of
from tests.rows import each_row

_UNRESERVED = string.ascii_letters + string.digits + "-._~"
uris = st.from_regex(r"(https|myapp)://[a-z.]{1,10}(/[a-zA-Z0-9%._~-]{0,8}){0,3}(\?[a-z=&%0-9]{0,10})?", fullmatch=True)
other_uris = st.from_regex(r"[a-z][a-z0-9+.-]{0,8}:(//)?[A-Za-z0-9._~/?&=%:@;-]{0,30}", fullmatch=True)
verifiers = st.text(_UNRESERVED, min_size=43, max_size=128)


def application(*redirect_uris: str) -> Application:
    return Application(
        ApplicationRecord(ApplicationKey(1), "a" * 32, OrganizationKey(1), "App", b"", (), redirect_uris, ())
    )


@given(st.lists(uris, min_size=1, max_size=4), st.text())
@example(["https://a/b"], "https://a/b/")
@example(["https://a/b"], "https://a/b#")
@example(["https://a/b"], "https://a/b?x")
@example(["https://a/b"], "HTTPS://a/b")
@example(["https://a/b"], "https://a/%62")
@example(["https://a/b"], "https://a/b\n")
def test_only_a_registered_address_is_accepted(registered: list[str], wanted: str) -> None:
    found = application(*registered).redirect_uri(wanted)
    assert found == (wanted if wanted in registered else None)


LOOPBACK = ("http://127.0.0.1/done", "http://[::1]:4711/", "http://localhost:1?a=b", "https://127.0.0.1/done")


@each_row(
    ("wanted", "fits"),
    [
        ("http://127.0.0.1:1/done", True),
        ("http://127.0.0.1:65535/done", True),
        ("http://127.0.0.1/done", True),
        ("http://[::1]:9/", True),
        ("http://localhost:8080?a=b", True),
        ("http://127.0.0.1:0/done", False),
        ("http://127.0.0.1:65536/done", False),
        ("http://127.0.0.1:/done", False),
        ("http://127.0.0.1:1/done/", False),
        ("http://127.0.0.1:1/done?x", False),
        ("http://127.0.0.1:1@evil.example/done", False),
        ("http://127.0.0.1.evil.example:1/done", False),
        ("http://127.0.0.2:1/done", False),
        ("http://localhost:8080/", False),
        ("http://localhost/done", False),
        ("https://127.0.0.1:1/done", False),
        ("http://[::1]:9", False),
        ("HTTP://127.0.0.1:1/done", False),
        ("http://127.0.0.1:\u0661/done", False),
    ],
)
def test_loopback_addresses_fit_with_any_port_where_the_application_has_chosen_so(wanted: str, fits: bool) -> None:
    chosen = Application(replace(application(*LOOPBACK).record, any_loopback_port=True))
    assert chosen.redirect_uri(wanted) == (wanted if fits else None)
    assert application(*LOOPBACK).redirect_uri(wanted) == (wanted if wanted in LOOPBACK else None)


@given(uris, st.text(min_size=1, max_size=5), st.integers(0, 40))
def test_no_similar_address_is_accepted(registered: str, inserted: str, at: int) -> None:
    changed = registered[:at] + inserted + registered[at:]
    assert application(registered).redirect_uri(changed) is None
    assert application(registered).redirect_uri(registered.swapcase()) is None
    assert application(registered).redirect_uri(registered) == registered


def test_the_default_is_the_first_registered_address() -> None:
    assert application("https://b/", "https://a/").redirect_uri(None) == "https://b/"


@given(uris, st.text(st.characters(codec="utf-8")), st.booleans())
def test_appended_parameters_do_not_change_the_address(uri: str, state: str, fragment: bool) -> None:
    url = with_parameters(uri, [("state", state), ("left_out", None)], fragment=fragment)
    assert url.startswith(uri)
    assert url.isascii()
    assert not set(url[len(uri) :]) & set(" \r\n<>\"'")
    if not fragment:
        assert query_of(url).get("state", "") == state
        assert "left_out" not in query_of(url)


@given(registered=other_uris, position=st.integers(0, 50), character=st.characters())
def test_one_character_more_or_other_is_another_address(registered: str, position: int, character: str) -> None:
    known = application(registered)
    at = position % (len(registered) + 1)
    longer = registered[:at] + character + registered[at:]
    assert known.redirect_uri(longer) is None
    changed = registered[:at] + character + registered[at + 1 :]
    assert (known.redirect_uri(changed) is None) is (changed != registered)


@given(
    uri=other_uris,
    parameters=st.lists(st.tuples(st.sampled_from(["code", "state", "error"]), st.text(min_size=1, max_size=20))),
    fragment=st.booleans(),
)
def test_parameters_are_appended_and_the_address_stays(
    uri: str, parameters: list[tuple[str, str]], fragment: bool
) -> None:
    parameters = [
        (name, "".join(c for c in value if not "\ud800" <= c <= "\udfff") or "x") for name, value in parameters
    ]
    url = with_parameters(uri, parameters, fragment=fragment)
    assert url.startswith(uri)
    added = url[len(uri) :].lstrip("?&#")
    assert added.isascii()
    assert added.isprintable()
    assert " " not in added
    expected: dict[str, list[str]] = {}
    for name, value in parameters:
        expected.setdefault(name, []).append(value)
    assert parse_qs(added, keep_blank_values=True) == expected


@each_row(
    ("uri", "fragment", "url"),
    [
        ("https://a.example", False, "https://a.example?code=1"),
        ("https://a.example/?", False, "https://a.example/?code=1"),
        ("https://a.example/?x=%2F+1", False, "https://a.example/?x=%2F+1&code=1"),
        ("https://a.example/#top", False, "https://a.example/?code=1#top"),
        ("https://a.example/#top", True, "https://a.example/#top&code=1"),
        ("myapp:///done", False, "myapp:///done?code=1"),
        ("myapp:done", True, "myapp:done#code=1"),
    ],
)
def test_where_parameters_go(uri: str, fragment: bool, url: str) -> None:
    assert with_parameters(uri, [("code", "1"), ("state", None)], fragment=fragment) == url


def proves(verifier: str, challenge: str) -> bool:
    """The two checks of the token endpoint."""
    return VERIFIER.fullmatch(verifier) is not None and S256.CODE_CHALLENGE_METHODS["S256"](verifier, challenge)


@given(verifiers)
def test_a_verifier_proves_its_own_challenge(verifier: str) -> None:
    assert create_s256_code_challenge(verifier) == challenge_of(verifier)
    assert proves(verifier, challenge_of(verifier))


@given(verifiers, verifiers)
def test_another_verifier_proves_nothing(verifier: str, other: str) -> None:
    assert proves(other, challenge_of(verifier)) == (other == verifier)
    assert not proves(challenge_of(verifier), challenge_of(verifier))


@given(st.text().filter(lambda text: not (43 <= len(text) <= 128 and set(text) <= set(_UNRESERVED))))
def test_a_verifier_has_43_to_128_plain_characters(text: str) -> None:
    assert VERIFIER.fullmatch(text) is None


@given(verifiers, st.sampled_from("\n =+/ü"), st.integers(0, 128))
def test_a_verifier_has_no_other_characters(verifier: str, wrong: str, at: int) -> None:
    assert VERIFIER.fullmatch(verifier[:at] + wrong + verifier[at:]) is None
