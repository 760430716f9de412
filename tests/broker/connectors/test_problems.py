"""Failures of a connector: kept within bounds, in words without a message's content (reference 27.21)."""

import pytest

from broker.connectors.calls import CALL_FAILURES, LinkEndedError
from broker.connectors.hooks import AnswerNotReadError, PluginFailedError
from broker.connectors.oauth import AuthorizationRefusedError, OperatorFaultError, TokenRevokedError
from broker.connectors.port import ThirdPartySilentError
from broker.connectors.problems import KEPT_MS, NO_DEVICE, Doing, Problems, sentence_of
from broker.connectors.sending import WaitedTooLongError
from broker.errors import DeviceNotFound, StorageUnavailable
from broker.limits.refusals import DailyQuotaExceeded
from broker.services import Services
from config.limits import CONNECTOR_PROBLEMS
from storage.keys import DeviceKey, DeviceTypeKey
from storage.sql import StoreError
from tests.factories import World
from tests.fakes import FakeClock
from tests.type_world import add_types

LIGHTS, METERS = DeviceTypeKey(1), DeviceTypeKey(2)


@pytest.fixture
def problems(services: Services) -> Problems:
    return Problems(services.core.database, services.core.news, services.core.clock)


def devices(problems: Problems, type_: DeviceTypeKey = LIGHTS) -> list[int]:
    return [one.device for one in problems.of(type_)]


async def test_a_problem_counts_until_a_call_of_its_kind_succeeds(problems: Problems, fake_clock: FakeClock) -> None:
    begun_ms = fake_clock.clock.now_ms()
    problems.note(LIGHTS, DeviceKey(7), Doing.FETCH, "It was 503.")
    problems.note(LIGHTS, DeviceKey(8), Doing.FETCH, "It was 503.")
    fake_clock.advance(1_000)
    problems.note(LIGHTS, DeviceKey(7), Doing.FETCH, "It was 500.")
    problems.note(METERS, DeviceKey(9), Doing.ACTION, "x" * 1_000)
    seven, eight = problems.of(LIGHTS)
    assert (seven.device, seven.sentence, seven.times) == (7, "It was 500.", 2)
    assert (seven.first_on, seven.last_on) == (begun_ms, begun_ms + 1_000)
    assert (eight.device, eight.times) == (8, 1)
    assert [len(one.sentence) for one in problems.of(METERS)] == [300]
    problems.note_success(LIGHTS, DeviceKey(7), Doing.ACTION)
    problems.note_success(METERS, DeviceKey(7), Doing.FETCH)
    assert devices(problems) == [7, 8]
    problems.note_success(LIGHTS, DeviceKey(7), Doing.FETCH)
    assert devices(problems) == [8]
    problems.forget(DeviceKey(8))
    assert devices(problems) == []


async def test_problems_are_bounded_and_end_after_a_week(problems: Problems, fake_clock: FakeClock) -> None:
    for number in range(1, CONNECTOR_PROBLEMS + 11):
        problems.note(LIGHTS, DeviceKey(number), Doing.FETCH, "No answer.")
    fetched = list(range(CONNECTOR_PROBLEMS + 10, 10, -1))
    assert devices(problems) == fetched
    for number in range(1, CONNECTOR_PROBLEMS + 11):  # an owner's Actions crowd out nothing but Actions
        problems.note(LIGHTS, DeviceKey(1_000 + number), Doing.ACTION, "Refused.")
    assert devices(problems) == [1_000 + number for number in fetched] + fetched
    fake_clock.advance(KEPT_MS)
    problems.note(LIGHTS, DeviceKey(11), Doing.FETCH, "No answer.")
    fake_clock.advance(1)
    assert devices(problems) == [11]


async def test_problems_are_there_after_a_restart_in_their_order(
    services: Services, world: World, problems: Problems
) -> None:
    await add_types(services.core.database, world)
    for device in (7, 8, 7):
        problems.note(LIGHTS, DeviceKey(device), Doing.FETCH, "No answer.")
    problems.note(METERS, NO_DEVICE, Doing.NOTIFICATION, "Not read.")
    await problems.save()
    problems.note_success(METERS, NO_DEVICE, Doing.NOTIFICATION)
    await problems.save()
    await problems.save()  # nothing has changed
    again = Problems(services.core.database, services.core.news, services.core.clock)
    await again.load()
    assert again.of(LIGHTS) == problems.of(LIGHTS)
    assert devices(again) == [7, 8]
    assert again.of(METERS) == []


@pytest.mark.both_engines
async def test_what_could_not_be_saved_is_saved_later(
    services: Services, world: World, problems: Problems, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_given: object) -> None:
        raise StoreError("disk full")

    problems.note(LIGHTS, DeviceKey(7), Doing.FETCH, "No answer.")
    with monkeypatch.context() as patched:
        patched.setattr(services.core.database, "write", fail)
        with pytest.raises(StoreError):
            await problems.save()
    await problems.save()
    again = Problems(services.core.database, services.core.news, services.core.clock)
    await again.load()
    assert devices(again) == [7]


def test_every_failure_of_a_call_has_its_sentence() -> None:
    secret = "fetch_response: ValueError: the answer had pin 1234"
    for error, part in (
        (AnswerNotReadError(secret, 503), "answered 503."),
        (PluginFailedError(secret), "in its hook fetch_response;"),
        (ThirdPartySilentError("no answer within 15 s"), "no answer within 15 s."),
        (OperatorFaultError("server_error", "invalid_client"), "refuses the client"),
        (AuthorizationRefusedError("server_error", "no code"), "no access token: no code."),
        (TokenRevokedError(), "must link the device again."),
        (WaitedTooLongError(), "10 minutes."),
        (DailyQuotaExceeded(5, "d1"), "A limit of the device or of its owner is reached: "),
        (StorageUnavailable(), "could not store"),
        (StoreError("/var/lib/secret"), "could not store"),
        (KeyError("pin 1234"), "KeyError"),
    ):
        sentence = sentence_of(error)
        assert sentence is not None
        assert part in sentence, error
        assert "1234" not in sentence
        assert "/var" not in sentence
    nobody = (LinkEndedError(), DeviceNotFound(), AuthorizationRefusedError("access_denied", "no"))
    assert [sentence_of(one) for one in nobody] == [None, None, None]
    told = {type(one) for one in nobody} | {ThirdPartySilentError.__base__, DailyQuotaExceeded.__base__}
    assert set(CALL_FAILURES) - told == {TokenRevokedError, PluginFailedError}
