"""Holders of connections, and when a connection is too many (reference 21.8)."""

import pytest

from broker.accounts.tokens import CONSOLE_ID, Caller, TokenKind
from broker.limits.sockets import Held, Holder, Sockets, TooManyConnections, holders_of, holders_of_device
from broker.trace.origin import on_whose_account
from config.settings import Limits
from storage.keys import OrganizationKey
from tests.fakes import new_refusals

ADA: Holder = ("user", "ada")
BOB: Holder = ("user", "bob")
LAMP: Holder = ("device", "lamp")
DASHBOARD: Holder = ("application", "dashboard")


def limited(*, descriptors: int = 1_000_000, **numbers: int) -> Sockets:
    return Sockets(Limits(**numbers), descriptors, new_refusals())  # type: ignore[arg-type]


def opened(sockets: Sockets, count: int, *holders: Holder, is_feed: bool = False) -> list[Held]:
    return [sockets.hold(holders, is_feed=is_feed) for _ in range(count)]


def refusal(sockets: Sockets, *holders: Holder, is_feed: bool = False) -> str:
    with pytest.raises(TooManyConnections) as caught:
        sockets.hold(holders, is_feed=is_feed)
    return str(caught.value)


def test_each_holder_has_a_bound_and_one_that_ends_makes_room() -> None:
    sockets = limited(connections_per_user=3, connections_per_application=5, connections_per_device=1)
    first, *_ = opened(sockets, 3, ADA, DASHBOARD)
    assert refusal(sockets, ADA, DASHBOARD) == "Too many connections of this user: at most 3"
    opened(sockets, 2, BOB, DASHBOARD)
    assert refusal(sockets, BOB, DASHBOARD) == "Too many connections of this application: at most 5"
    opened(sockets, 1, LAMP)
    assert refusal(sockets, LAMP) == "Too many connections of this device: at most 1"
    sockets.release(first)
    opened(sockets, 1, ADA, DASHBOARD)
    statistics = sockets.statistics()
    assert (statistics.connections, statistics.feeds, statistics.refused) == (6, 0, 3)


def test_feeds_have_bounds_of_their_own() -> None:
    sockets = limited(feeds_per_user=2, feeds_per_application=3)
    opened(sockets, 2, ADA, DASHBOARD, is_feed=True)
    assert refusal(sockets, ADA, DASHBOARD, is_feed=True) == "Too many feeds of this user: at most 2"
    opened(sockets, 1, BOB, DASHBOARD, is_feed=True)
    assert refusal(sockets, BOB, DASHBOARD, is_feed=True) == "Too many feeds of this application: at most 3"
    opened(sockets, 5, ADA, DASHBOARD)


def test_a_connection_that_serves_somebody_else_counts_for_them_instead() -> None:
    sockets = limited(connections_per_user=1)
    held = sockets.hold((ADA, DASHBOARD))
    held = sockets.hold((ADA,), is_feed=True, instead=held)  # still one
    held = sockets.hold((BOB,), instead=held)
    opened(sockets, 1, ADA)
    assert refusal(sockets, BOB) == "Too many connections of this user: at most 1"
    sockets.release(held)
    assert sockets.statistics().connections == 1


def test_nobody_has_more_than_a_quarter_of_the_descriptors_and_the_last_tenth_is_for_who_has_few() -> None:
    sockets = limited(descriptors=100)
    opened(sockets, 25, ADA)
    assert refusal(sockets, ADA) == "Too many connections of this user: at most 25"
    for number in range(13):
        opened(sockets, 5, ("user", str(number)))
    assert refusal(sockets, ADA) == "Too many connections of this user: at most 10"
    opened(sockets, 5, ("user", "0"))
    assert refusal(sockets, ("user", "0")) == "Too many connections of this user: at most 10"
    opened(sockets, 1, BOB)


def test_many_devices_of_one_owner_leave_the_last_tenth_to_others() -> None:
    """Else 200 devices with 100 connections each would shut out everybody."""
    sockets = limited(descriptors=100)
    for number in range(90):
        opened(sockets, 1, *holders_of_device(str(number), "ada"))
    assert refusal(sockets, *holders_of_device("another", "ada")) == "Too many connections of this owner: at most 10"
    opened(sockets, 5, *holders_of_device("lamp", "bob"))
    opened(sockets, 5, ADA)  # she herself has few


def test_the_applications_of_all_trials_of_one_user_are_one() -> None:
    """Anybody makes a hundred trials. They take turns as one, too (`broker/trace/origin.py: on_whose_account`)."""
    one, other = (
        Caller(TokenKind.APPLICATION, b"1", None, application_id=id_, trial_organization=OrganizationKey(7))
        for id_ in ("first", "second")
    )
    assert holders_of(one)[1] == holders_of(other)[1]
    accounts = set()
    for caller in (one, other):
        caller.act()
        accounts.add(on_whose_account())
    assert len(accounts) == 1
    assert one.actor != other.actor


def test_lower_numbers_end_no_connection() -> None:
    sockets = limited()
    opened(sockets, 5, ADA)
    sockets.renew(Limits(connections_per_user=3))
    assert sockets.statistics().connections == 5
    refusal(sockets, ADA)


@pytest.mark.parametrize(
    ("kind", "application", "kinds"),
    [
        (TokenKind.USER, "dashboard", ["token", "user", "application"]),
        (TokenKind.USER, CONSOLE_ID, ["token", "user"]),  # which serves all users
        (TokenKind.APPLICATION, "dashboard", ["token", "application"]),
        (TokenKind.DEVICE, None, ["device", "owner"]),
    ],
)
def test_for_whom_a_connection_counts(kind: TokenKind, application: str | None, kinds: list[str]) -> None:
    caller = Caller(kind, b"hash", None, user_id="ada", application_id=application, device_id="lamp")
    assert [kind for kind, _ in holders_of(caller)] == kinds
