"""The payer of a task's work."""

import pytest

from broker.accounts.tokens import Caller, TokenKind
from broker.trace.origin import Origin, enter, on_whose_account
from storage.keys import ApplicationKey, DeviceKey, UserKey

_USER = Caller(
    kind=TokenKind.USER, token=b"u", expires_on=None, user=UserKey(3), user_id="ada", application_id="dashboard"
)
_DEVICE = Caller(
    kind=TokenKind.DEVICE, token=b"d", expires_on=None, device=DeviceKey(7), device_id="lamp", device_owner="ada"
)
_APPLICATION = Caller(
    kind=TokenKind.APPLICATION, token=b"a", expires_on=None, application=ApplicationKey(5), application_id="dashboard"
)


@pytest.mark.parametrize(
    ("caller", "account"), [(_USER, "user ada"), (_DEVICE, "user ada"), (_APPLICATION, "application dashboard")]
)
async def test_a_user_pays_for_all_devices_and_applications_that_act_for_the_user(caller: Caller, account: str) -> None:
    enter(Origin("192.0.2.1"))
    caller.act()
    assert on_whose_account() == account


async def test_an_address_pays_for_strangers_and_nobody_for_the_daemon() -> None:
    enter(Origin("2001:db8::1"))
    stranger = on_whose_account()
    enter(Origin("2001:db8::2"))
    assert on_whose_account() == stranger == "address 2001:0db8:0000:0000/64"
    enter(Origin())
    assert on_whose_account() is None


async def test_the_next_caller_of_a_connection_pays_for_itself() -> None:
    _DEVICE.act()
    _APPLICATION.act()
    assert on_whose_account() == "application dashboard"
