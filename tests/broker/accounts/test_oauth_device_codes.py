"""The limited-input flow: polling, typing the user code, and limits on guessing it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.accounts.device_codes import ALPHABET, UserCodeNotFound, new_user_code, typed_user_code
from broker.errors import TooManyAttempts
from broker.trace.origin import address_key
from tests.broker.accounts.oauth_world import (
    BOTH,
    SECRETS,
    TV,
    WEB,
    OAuthWorld,
    application_of,
    basic,
    granted,
    refused,
)
from tests.fakes import FakeClock
from tests.rows import each_row

HERE, ELSEWHERE = "192.0.2.1", "192.0.2.2"


async def poll(oauth: OAuthWorld, code: str) -> tuple[int, str]:
    answer = await oauth.token(grant_type="device_code", client_id=TV, code=code)
    if answer.status != 200:
        assert answer.body["error_description"]
    return (200, "") if answer.status == 200 else refused(answer)


async def test_the_device_authorization_response(oauth: OAuthWorld) -> None:
    body = granted(await oauth.device_code())
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", body["device_code"])
    assert re.fullmatch(f"[{ALPHABET}]{{4}}-[{ALPHABET}]{{4}}", body["user_code"])
    url = f"{oauth.services.core.site.accounts_url}/go"
    assert (body["expires_in"], body["interval"]) == (1800, 5)
    assert body["verification_url"] == body["verification_uri"] == url
    assert body["verification_uri_complete"] == f"{url}?user_code={body['user_code']}"


@each_row(
    ("form", "refusal"),
    [
        ({"client_id": ""}, (400, "invalid_request")),
        ({"client_id": "ff" * 16}, (401, "invalid_client")),
        ({"client_id": WEB}, (400, "unauthorized_client")),
        ({"client_secret": "wrong"}, (401, "invalid_client")),
    ],
)
async def test_refused_device_authorization_requests(
    oauth: OAuthWorld, form: dict[str, str], refusal: tuple[int, str]
) -> None:
    assert refused(await oauth.device_code(**form)) == refusal


async def test_a_right_secret_is_accepted_where_none_is_needed(oauth: OAuthWorld) -> None:
    granted(await oauth.device_code(client_secret=SECRETS[TV]))


async def test_the_next_poll_after_approval_gets_the_token_once(oauth: OAuthWorld, fake_clock: FakeClock) -> None:
    body = (await oauth.device_code()).body
    assert await poll(oauth, body["device_code"]) == (400, "authorization_pending")
    waiting = await oauth.services.accounts.device_codes.find(body["user_code"], address=HERE)
    assert waiting.screen.application == "Television"
    assert waiting.user_code == body["user_code"]
    fake_clock.advance(5000)
    assert await poll(oauth, body["device_code"]) == (400, "authorization_pending")
    assert await oauth.services.accounts.device_codes.find(body["user_code"].replace("-", ""), address=HERE) == waiting
    assert await oauth.services.accounts.device_codes.approve(waiting, oauth.ada.key, address=HERE) is None
    assert await poll(oauth, body["device_code"]) == (200, "")
    assert await poll(oauth, body["device_code"]) == (400, "expired_token")


@pytest.mark.both_engines
async def test_only_what_was_shown_is_granted(oauth: OAuthWorld) -> None:
    codes = oauth.services.accounts.device_codes
    body = (await oauth.device_code()).body
    shown = await codes.find(body["user_code"], address=HERE)
    await oauth.ask_for(TV, [{"device_type": "*", "permissions": ["READ"]}])
    instead = await codes.approve(shown, oauth.ada.key, address=HERE)
    assert instead is not None
    assert [asked.target for asked in instead.screen.asked] == ["*"]
    assert await poll(oauth, body["device_code"]) == (400, "authorization_pending")
    assert await codes.approve(instead, oauth.ada.key, address=HERE) is None


async def test_every_poll_after_a_denial_gets_access_denied(oauth: OAuthWorld) -> None:
    body = (await oauth.device_code()).body
    waiting = await oauth.services.accounts.device_codes.find(body["user_code"], address=HERE)
    await oauth.services.accounts.device_codes.deny(body["user_code"], oauth.ada.key, address=HERE)
    for _ in range(2):
        assert await poll(oauth, body["device_code"]) == (400, "access_denied")
    with pytest.raises(UserCodeNotFound):
        await oauth.services.accounts.device_codes.approve(waiting, oauth.ada.key, address=HERE)


async def test_polling_too_soon_makes_the_interval_longer(oauth: OAuthWorld, fake_clock: FakeClock) -> None:
    code = (await oauth.device_code()).body["device_code"]
    for pause_ms, outcome in (
        (0, "authorization_pending"),
        (4_499, "slow_down"),  # 10 s from now on, counted from the first poll
        (5_000, "slow_down"),  # 15 s
        (4_999, "slow_down"),  # 20 s
        (5_002, "authorization_pending"),
        (19_500, "authorization_pending"),
    ):
        fake_clock.advance(pause_ms)
        assert await poll(oauth, code) == (400, outcome)


@each_row("early_ms", [0, 1, 500])
async def test_polling_at_exactly_the_interval_is_never_too_soon(
    oauth: OAuthWorld, fake_clock: FakeClock, early_ms: int
) -> None:
    code = (await oauth.device_code()).body["device_code"]
    for _ in range(20):
        assert await poll(oauth, code) == (400, "authorization_pending")
        fake_clock.advance(5_000 - early_ms)


@pytest.mark.both_engines
async def test_who_slows_down_is_heard_at_the_next_poll(oauth: OAuthWorld, fake_clock: FakeClock) -> None:
    """A refused poll does not move the time from which the interval counts."""
    code = (await oauth.device_code()).body["device_code"]
    assert await poll(oauth, code) == (400, "authorization_pending")
    fake_clock.advance(100)
    assert await poll(oauth, code) == (400, "slow_down")
    fake_clock.advance(9_900)
    assert await poll(oauth, code) == (400, "authorization_pending")


async def test_a_device_code_expires(oauth: OAuthWorld, fake_clock: FakeClock) -> None:
    body, approved = (await oauth.device_code()).body, await oauth.approved_device_code()
    fake_clock.advance(1_800_000)
    for code in (body["device_code"], approved):
        assert await poll(oauth, code) == (400, "expired_token")
    with pytest.raises(UserCodeNotFound):
        await oauth.services.accounts.device_codes.find(body["user_code"], address=HERE)


async def test_a_device_code_is_good_for_its_application_only(oauth: OAuthWorld) -> None:
    await oauth.change_methods(BOTH, "limited_input")
    form = {"grant_type": "device_code", "code": await oauth.approved_device_code()}
    assert refused(await oauth.token(client_id=BOTH, **form)) == (400, "invalid_grant")
    assert refused(await oauth.token(basic(BOTH), **form)) == (400, "invalid_grant")
    granted(await oauth.token(client_id=TV, **form))


async def test_approval_stores_the_grants(oauth: OAuthWorld) -> None:
    await oauth.ask_for(TV, [{"device_type": "*", "permissions": ["READ"]}])
    await oauth.approved_device_code()
    application = await application_of(oauth.services, TV)
    (grant,) = await oauth.services.core.database.read(lambda tx: tx.accounts.grants(application.key, oauth.ada.key))
    assert (grant.device_type, grant.read, grant.write) == (None, True, False)


@pytest.mark.parametrize(
    "typed", ["", "AAAA-AAA", "aaaa-aaaa", "AAAA-AAAA ", "AAAA--AAAA", "AAAA-AAA0", "Ä" * 8, "%" * 999]
)
async def test_a_wrong_code_is_not_found(oauth: OAuthWorld, typed: str) -> None:
    for _ in range(3):
        with pytest.raises(UserCodeNotFound):
            await oauth.services.accounts.device_codes.find(typed, address=HERE)


async def test_one_address_may_guess_ten_times(oauth: OAuthWorld, fake_clock: FakeClock) -> None:
    codes = oauth.services.accounts.device_codes
    right = (await oauth.device_code()).body["user_code"]
    waiting = await codes.find(right, address=HERE)
    for number in range(10):
        with pytest.raises(UserCodeNotFound):
            await codes.find(f"AAAA-AA{ALPHABET[number]}{ALPHABET[number]}", address=HERE)
    for attempt in (codes.find(right, address=HERE), codes.approve(waiting, oauth.ada.key, address=HERE)):
        with pytest.raises(TooManyAttempts) as caught:
            await attempt
        assert (caught.value.status, caught.value.retry_seconds) == (429, 900)
    await codes.find(right, address=ELSEWHERE)
    fake_clock.advance(900_000)
    await codes.find(right, address=HERE)


async def test_one_wrong_code_may_be_tried_ten_times_from_anywhere(oauth: OAuthWorld) -> None:
    codes = oauth.services.accounts.device_codes
    for number in range(10):
        with pytest.raises(UserCodeNotFound):
            await codes.find("AAAAAAAA" if number % 2 else "AAAA-AAAA", address=f"198.51.100.{number}")
    for typed in ("AAAA-AAAA", "AAAAAAAA"):
        with pytest.raises(TooManyAttempts):
            await codes.find(typed, address="203.0.113.1")


async def test_old_wrong_codes_are_not_counted(oauth: OAuthWorld, fake_clock: FakeClock) -> None:
    for number in range(15):
        fake_clock.advance(100_000)
        with pytest.raises(UserCodeNotFound):
            await oauth.services.accounts.device_codes.find(f"AAAA-AA{ALPHABET[number]}A", address=HERE)


@each_row(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8:0:0:ffff::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("unix", "unix", True),
    ],
)
def test_addresses_that_count_as_one(one: str, other: str, same: bool) -> None:
    assert (address_key(one) == address_key(other)) is same


@given(st.data())
def test_a_typed_user_code_is_read_in_the_form_that_devices_show(data: st.DataObject) -> None:
    code = new_user_code()
    blanks = data.draw(st.lists(st.sampled_from(["", " ", "\t"]), min_size=9, max_size=9))
    typed = "".join(blank + one for blank, one in zip(blanks, code, strict=True))
    assert typed_user_code(typed) == typed_user_code(typed.replace("-", "").lower()) == code
    other = data.draw(st.text(max_size=10))
    found = typed_user_code(other)
    assert found is None or found.replace("-", "") == "".join(other.split()).upper().replace("-", "")


@each_row("text", ["", "ABCD", "ABCD-EFGHJ", "ABCD--EFGH", "ABC-DEFGH", "ABCD-EFG0", "ABCD-EFGI", "ſBCD-EFGH"])
def test_what_is_no_user_code_is_none(text: str) -> None:
    assert typed_user_code(text) is None
