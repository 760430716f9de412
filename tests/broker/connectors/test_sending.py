"""An Action that the third party cannot take now: attempts within a minute, and in order."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from broker.connectors.plugin import Request, Response
from broker.connectors.port import ThirdPartySilentError
from broker.connectors.sending import PendingAction, WaitedTooLongError
from storage.keys import DeviceKey

DATA = '{"actions":[{"name":"a"},{"name":"b"}]}'


@dataclass
class ThirdParty:
    """Stands for the connector, its link, and the calls to the third party. Each call takes `seconds`."""

    clock: MockClock
    answers: list[int] = field(default_factory=list)  # 0 is no answer
    seconds: float = 0.0
    asked: list[tuple[str, float]] = field(default_factory=list)

    @property
    def hooks(self) -> "ThirdParty":
        return self

    def device(self, _sub_device: str | None) -> None:
        return None

    async def action(self, _device: None, action: Any) -> list[Request]:
        return [Request("POST", f"/{action.name}/{part}") for part in (1, 2)]

    async def send(self, _connector: Any, _link: Any, request: Request, *_: Any) -> Response:
        self.asked.append((request.url, trio.current_time()))
        self.clock.jump(self.seconds)
        status = self.answers.pop(0) if self.answers else 200
        if not status:
            raise ThirdPartySilentError("nothing")
        return Response(status)

    def sending(self) -> PendingAction:
        async def link_for(_device: DeviceKey) -> Any:
            return self, None

        this: Any = self
        return PendingAction(this, DeviceKey(1), DATA, this, link_for, None)

    async def run(self, sending: PendingAction) -> None:
        while (wait := await sending.go_on()) is not None:
            self.clock.jump(wait)


async def test_only_the_request_that_was_not_taken_is_sent_again(mock_clock: MockClock) -> None:
    third_party = ThirdParty(mock_clock)
    third_party.answers = [200, 503, 0, 504, 200]
    sending = third_party.sending()
    await third_party.run(sending)
    assert [url for url, _ in third_party.asked] == ["/a/1", "/a/2", "/a/2", "/a/2", "/a/2", "/b/1", "/b/2"]
    assert (sending.sent, sending.failed, sending.was_delayed) == (4, 0, True)


async def test_a_refusal_is_not_sent_again(mock_clock: MockClock) -> None:
    third_party = ThirdParty(mock_clock)
    third_party.answers = [400, 500, 429, 404]
    sending = third_party.sending()
    await third_party.run(sending)
    assert (len(third_party.asked), sending.sent, sending.failed, sending.was_delayed) == (4, 0, 4, False)


@pytest.mark.parametrize(("seconds", "attempts"), [(0.0, 7), (15.0, 4), (59.5, 1)])
async def test_no_attempt_begins_after_a_minute(mock_clock: MockClock, seconds: float, attempts: int) -> None:
    third_party = ThirdParty(mock_clock)
    third_party.answers, third_party.seconds = [0] * 20, seconds
    begun = trio.current_time()
    with pytest.raises(ThirdPartySilentError):
        await third_party.run(third_party.sending())
    assert len(third_party.asked) == attempts
    assert third_party.asked[-1][1] <= begun + 60


async def test_a_third_party_that_stays_busy_has_refused(mock_clock: MockClock) -> None:
    third_party = ThirdParty(mock_clock)
    third_party.answers = [503] * 7
    sending = third_party.sending()
    await third_party.run(sending)
    assert (sending.sent, sending.failed) == (3, 1)


async def test_an_action_that_waited_for_others_too_long_is_not_sent(mock_clock: MockClock) -> None:
    third_party = ThirdParty(mock_clock)
    sending = third_party.sending()
    third_party.clock.jump(601)
    with pytest.raises(WaitedTooLongError):
        await sending.go_on()
    assert third_party.asked == []
