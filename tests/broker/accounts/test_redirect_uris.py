"""Where a browser may be sent, and who may redeem a code: rules that hold for every text."""

import string

from authlib.oauth2.rfc7636 import create_s256_code_challenge
from hypothesis import example, given
from hypothesis import strategies as st

from broker.accounts.applications import Application
from broker.accounts.code_grant import S256, VERIFIER
from broker.accounts.redirects import with_parameters
from storage.records import ApplicationRecord
from tests.broker.accounts.oauth_world import challenge_of, query_of

_UNRESERVED = string.ascii_letters + string.digits + "-._~"
uris = st.from_regex(r"(https|myapp)://[a-z.]{1,10}(/[a-zA-Z0-9%._~-]{0,8}){0,3}(\?[a-z=&%0-9]{0,10})?", fullmatch=True)
verifiers = st.text(_UNRESERVED, min_size=43, max_size=128)


def application(*redirect_uris: str) -> Application:
    return Application(ApplicationRecord(1, "a" * 32, 1, "App", b"", (), redirect_uris, ()))


@given(st.lists(uris, min_size=1, max_size=10), st.text())
@example(["https://a/b"], "https://a/b/")
@example(["https://a/b"], "https://a/b#")
@example(["https://a/b"], "https://a/b?x")
@example(["https://a/b"], "HTTPS://a/b")
@example(["https://a/b"], "https://a/%62")
@example(["https://a/b"], "https://a/b\n")
def test_only_a_registered_address_is_one(registered: list[str], wanted: str) -> None:
    found = application(*registered).redirect_uri(wanted)
    assert found == (wanted if wanted in registered else None)


@given(uris, st.text(min_size=1, max_size=5), st.integers(0, 40))
def test_nothing_like_a_registered_address_is_one(registered: str, inserted: str, at: int) -> None:
    changed = registered[:at] + inserted + registered[at:]
    assert application(registered).redirect_uri(changed) is None
    assert application(registered).redirect_uri(registered.swapcase()) is None
    assert application(registered).redirect_uri(registered) == registered


@given(st.lists(uris, min_size=1, max_size=10))
def test_without_one_it_is_the_first(registered: list[str]) -> None:
    assert application(*registered).redirect_uri(None) == registered[0]


@given(uris, st.text(st.characters(codec="utf-8")), st.booleans())
def test_what_is_added_changes_nothing_that_was_there(uri: str, state: str, fragment: bool) -> None:
    url = with_parameters(uri, [("state", state), ("left_out", None)], fragment=fragment)
    assert url.startswith(uri)
    assert url.isascii()
    assert not set(url[len(uri) :]) & set(" \r\n<>\"'")
    if not fragment:
        assert query_of(url).get("state", "") == state
        assert "left_out" not in query_of(url)


def proves(verifier: str, challenge: str) -> bool:
    """As the token endpoint decides it."""
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
