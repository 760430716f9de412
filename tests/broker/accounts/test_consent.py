"""Consent that is remembered, and applications that are revoked (reference 4.7 and 5.4)."""

import pytest

from broker.accounts.authorize import Redirect
from broker.accounts.permissions import Permission
from broker.errors import Unauthorized
from broker.facts import GrantsChanged
from tests.broker.accounts.oauth_world import (
    MOBILE,
    PAGE,
    PROTECTED_TYPE,
    THEIR_TYPE,
    TV,
    WEB,
    OAuthWorld,
    application_of,
    basic,
    granted,
    refused,
)
from tests.broker.accounts.test_oauth_authorize import asks
from tests.factories import KITCHEN, LIGHT_TYPE
from tests.rows import each_row

Requests = list[dict[str, object]]


async def is_asked(oauth: OAuthWorld, **query: str) -> bool:
    asked = await oauth.read(client_id=WEB, response_type="code", **query)
    return await oauth.services.accounts.authorize.consent_needed(asked, oauth.ada.key) is not None


@pytest.mark.parametrize(
    ("agreed", "wanted", "again"),
    [
        ([asks(THEIR_TYPE, "READ")], [asks(THEIR_TYPE, "READ")], False),
        ([asks(THEIR_TYPE, "READ", "WRITE")], [asks(THEIR_TYPE, "WRITE")], False),
        ([asks(THEIR_TYPE, "READ")], [asks(THEIR_TYPE, "READ", "WRITE")], True),
        ([asks(THEIR_TYPE, "READ")], [asks(THEIR_TYPE, "READ"), asks(LIGHT_TYPE, "WRITE")], False),
        ([asks(THEIR_TYPE, "READ")], [asks(PROTECTED_TYPE, "READ")], False),  # never granted, so never asked for
        ([asks(THEIR_TYPE, "READ", "WRITE")], [asks("*", "READ")], True),
        ([asks("*", "READ")], [asks(THEIR_TYPE, "READ"), asks("*", "READ")], False),
        ([asks("*", "READ")], [asks(THEIR_TYPE, "WRITE")], True),
        ([asks("*", "READ"), asks(THEIR_TYPE, "WRITE")], [asks(THEIR_TYPE, "READ", "WRITE")], False),
        ([asks("*", "READ"), asks(THEIR_TYPE, "WRITE")], [asks("*", "WRITE")], True),
        ([asks("profile", "WRITE")], [asks("profile", "READ", "WRITE")], False),
        ([asks("profile", "WRITE")], [asks("profile", "WRITE"), asks("*", "READ")], True),
        ([asks("*", "READ", "WRITE")], [asks("profile", "WRITE")], True),
        ([asks("trials", "READ")], [asks("trials", "READ", "WRITE")], False),  # the two go together
        ([asks("*", "READ", "WRITE"), asks("profile", "WRITE")], [asks("trials", "READ")], True),
        ([asks("trials", "READ", "WRITE")], [asks("*", "READ")], True),
        ([], [asks(LIGHT_TYPE, "READ", "WRITE")], False),
    ],
)
async def test_the_screen_comes_again_only_for_more_than_was_agreed(
    oauth: OAuthWorld, agreed: Requests, wanted: Requests, again: bool
) -> None:
    await oauth.ask_for(WEB, agreed)
    await oauth.code(WEB)
    assert not await is_asked(oauth)
    await oauth.ask_for(WEB, wanted)
    assert await is_asked(oauth) is again
    # Another user's consent does not count.
    asked = await oauth.read(client_id=WEB, response_type="code")
    needs_screen = any(one["device_type"] not in {LIGHT_TYPE, PROTECTED_TYPE} for one in wanted)
    screen = await oauth.services.accounts.authorize.consent_needed(asked, oauth.bob.key)
    assert (screen is not None) is needs_screen


@each_row("permissions", [[], [asks(LIGHT_TYPE, "READ")], [asks(THEIR_TYPE, "READ")]])
async def test_prompt_consent_always_shows_the_screen(oauth: OAuthWorld, permissions: Requests) -> None:
    await oauth.ask_for(WEB, permissions)
    await oauth.code(WEB)
    assert await is_asked(oauth, prompt="consent")
    asked = await oauth.read(client_id=WEB, response_type="code", prompt="consent")
    authorize = oauth.services.accounts.authorize
    screen = await authorize.allow(asked, oauth.ada.key)  # nobody agreed to anything
    assert screen == await authorize.consent_needed(asked, oauth.ada.key)
    assert isinstance(await authorize.allow(asked, oauth.ada.key, agreed=screen), Redirect)


@each_row("application", [WEB, MOBILE, PAGE, TV])
async def test_a_sign_in_without_a_screen_grants_the_types_of_the_own_organization_alone(
    oauth: OAuthWorld, application: str
) -> None:
    answer = await oauth.user_tokens(application)
    reach = await oauth.services.accounts.permissions.reach(
        await oauth.services.accounts.tokens.caller(answer["access_token"])
    )
    types = [(await oauth.services.device_types.catalog.find(one)).record for one in (LIGHT_TYPE, THEIR_TYPE)]
    for permission in (Permission.READ, Permission.WRITE):
        assert [reach.allows_type(oauth.ada.key, one, permission) for one in types] == [True, False]


@each_row("application", [WEB, MOBILE, PAGE, TV])
async def test_revoking_an_application_ends_its_tokens_and_its_grants(oauth: OAuthWorld, application: str) -> None:
    tokens, server = oauth.services.accounts.tokens, await application_of(oauth.services, application)
    answer = await oauth.user_tokens(application)
    reach = await oauth.services.accounts.permissions.reach(await tokens.caller(answer["access_token"]))
    kitchen = await oauth.services.devices.registry.find(KITCHEN)
    assert reach.allows(kitchen, Permission.READ)
    await oauth.services.accounts.granted.revoke(oauth.ada.key, server.key)
    assert not reach.allows(kitchen, Permission.READ)
    with pytest.raises(Unauthorized):
        await tokens.caller(answer["access_token"])
    old = {"old_access_token": answer["access_token"]} if application == PAGE else {}
    refresh = await oauth.token(
        basic(application) if application == WEB else "",
        grant_type="refresh_token",
        refresh_token=answer["refresh_token"],
        **({} if application == WEB else {"client_id": application}),
        **old,
    )
    assert refused(refresh) == (400, "invalid_grant")


async def test_revoking_an_application_ends_codes_that_it_has_not_exchanged(oauth: OAuthWorld) -> None:
    code, device_code = await oauth.code(WEB), await oauth.approved_device_code()
    for id_ in (WEB, TV):
        application = await application_of(oauth.services, id_)
        await oauth.services.accounts.granted.revoke(oauth.ada.key, application.key)
    web = await oauth.token(basic(WEB), grant_type="authorization_code", code=code)
    tv = await oauth.token(grant_type="device_code", client_id=TV, code=device_code)
    assert [refused(web), refused(tv)] == [(400, "invalid_grant"), (400, "access_denied")]


async def test_revoking_one_application_leaves_the_others_and_other_users(oauth: OAuthWorld) -> None:
    web, mobile = await oauth.user_tokens(WEB), await oauth.user_tokens(MOBILE)
    of_bob = "3b" * 16
    await oauth.services.provisioning.apply(
        {"tokens": [{"value": of_bob, "application": WEB, "user": "bob@example.org"}]}
    )
    application = await application_of(oauth.services, WEB)
    await oauth.services.accounts.granted.revoke(oauth.ada.key, application.key)
    with pytest.raises(Unauthorized):
        await oauth.services.accounts.tokens.caller(web["access_token"])
    for token in (mobile["access_token"], of_bob):
        caller = await oauth.services.accounts.tokens.caller(token)
        assert (await oauth.services.accounts.permissions.reach(caller)).covers_user(caller.user or oauth.ada.key)
    granted(await oauth.token(grant_type="refresh_token", refresh_token=mobile["refresh_token"], client_id=MOBILE))


async def test_a_sign_in_that_grants_nothing_new_is_no_change(oauth: OAuthWorld) -> None:
    """Every change looks at all open connections and feeds."""
    changes: list[GrantsChanged] = []
    oauth.services.core.router.subscribe(GrantsChanged, changes.append)
    for permissions, seen in ((["READ"], 1), (["READ"], 1), (["READ", "WRITE"], 2)):
        await oauth.ask_for(WEB, [asks(THEIR_TYPE, *permissions)])
        await oauth.code(WEB)
        assert len(changes) == seen


async def test_the_screen_comes_again_after_a_revocation(oauth: OAuthWorld) -> None:
    await oauth.ask_for(WEB, [asks(THEIR_TYPE, "READ"), asks("profile", "WRITE")])
    await oauth.code(WEB)
    assert not await is_asked(oauth)
    application = await application_of(oauth.services, WEB)
    await oauth.services.accounts.granted.revoke(oauth.ada.key, application.key)
    assert await is_asked(oauth)
