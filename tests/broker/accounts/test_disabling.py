"""Accounts that the operator has disabled (reference 27.15)."""

import pytest

from broker.accounts.sessions import AccountDisabled, WrongPassword
from broker.errors import LinkOver, PermissionDenied, UserNotFound
from broker.services import Services

pytestmark = pytest.mark.slow


_ADA, _PASSWORD, _ADDRESS = "ada@example.org", "correct horse battery staple", "192.0.2.1"


@pytest.fixture
async def ada(services: Services) -> str:
    """The id of a browser session."""
    await services.provisioning.apply({"users": [{"email": _ADA, "password": _PASSWORD}]})
    return (await services.accounts.sessions.sign_in(_ADA, _PASSWORD, address=_ADDRESS)).id


async def test_a_disabled_user_is_signed_out_and_cannot_sign_in(services: Services, ada: str) -> None:
    sessions = services.accounts.sessions
    disabled = await services.accounts.disabling.disable(_ADA)
    assert disabled.disabled_on == services.core.clock.now_ms()
    assert await sessions.find(ada) is None
    with pytest.raises(AccountDisabled):
        await sessions.sign_in(_ADA, _PASSWORD, address=_ADDRESS)
    with pytest.raises(WrongPassword) as caught:
        await sessions.sign_in(_ADA, "a wrong password", address=_ADDRESS)
    assert not isinstance(caught.value, AccountDisabled)  # who does not know the password learns nothing
    assert (await services.accounts.disabling.enable(_ADA)).disabled_on is None
    assert (await sessions.sign_in(_ADA, _PASSWORD, address=_ADDRESS)).user.email == _ADA


@pytest.mark.both_engines
async def test_no_token_is_issued_to_who_was_disabled_meanwhile(services: Services, ada: str) -> None:
    await services.provisioning.apply(
        {"organizations": [{"name": "Home"}], "applications": [{"name": "Board", "organization": "Home"}]}
    )
    user = await services.accounts.disabling.disable(_ADA)
    application = await services.accounts.applications.named("Board")
    with pytest.raises(PermissionDenied):
        await services.accounts.tokens.change(
            lambda issuance: issuance.for_user(application.record.key, user.key, "authorization_code")  # type: ignore[arg-type]
        )


async def test_who_is_not_there_is_neither_disabled_nor_enabled(services: Services) -> None:
    for change in (services.accounts.disabling.disable, services.accounts.disabling.enable):
        with pytest.raises(UserNotFound):
            await change("nobody@example.org")


@pytest.mark.both_engines
async def test_a_link_of_the_operator_sets_a_password_once(services: Services, ada: str) -> None:
    reset = await services.accounts.resets.open_for(_ADA)
    await services.accounts.resets.set_password(reset.code, "a password of my own")
    with pytest.raises(LinkOver):
        await services.accounts.resets.find(reset.code)
    assert await services.accounts.sessions.find(ada) is None
    await services.accounts.sessions.sign_in(_ADA, "a password of my own", address=_ADDRESS)
    with pytest.raises(UserNotFound):
        await services.accounts.resets.open_for("nobody@example.org")
