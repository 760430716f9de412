"""The handshake with a new callback (reference 11.2). Any answer ends it; without one it is tried again for a day."""

import structlog
import trio

from broker.clock import Clock
from broker.loops import Wakeup
from broker.secrets import Vault
from broker.subscriptions.port import Callbacks
from broker.subscriptions.subscription import Subscription
from broker.subscriptions.subscriptions import Subscriptions
from config.limits import RETRY_SECONDS, VALIDATION_HOURS
from storage.outages import Outage
from storage.sql import StoreError

_AT_ONCE = 500  # a callback that hangs takes a place for 15 s
_LOOK_SECONDS = 60.0
#: No attempt is planned further ahead, unless the clock was set back since.
_LONGEST_DELAY_MS = max(RETRY_SECONDS) * 1000
_log = structlog.get_logger(__name__)


class Handshakes:
    def __init__(self, clock: Clock, vault: Vault, subscriptions: Subscriptions, callbacks: Callbacks | None) -> None:
        self._clock = clock
        self._vault = vault
        self._subscriptions = subscriptions
        self._callbacks = callbacks
        self._wakeup = Wakeup()
        #: Subscriptions whose handshake is not over, by the time of the next attempt; and the ones with an attempt
        #: under way.
        self._due: dict[int, int] = {}
        self._under_way: set[int] = set()
        self._outage = Outage("handshake_not_saved")
        subscriptions.on_change(self._changed)

    def _changed(self, before: Subscription | None, after: Subscription | None) -> None:
        if after is not None and after.record.handshake_on is not None:
            self._due[after.key] = after.record.handshake_on
            self._wakeup.set()
        elif before is not None:
            self._due.pop(before.key, None)

    def look_for_due(self) -> None:
        self._wakeup.set()

    async def shake_forever(self) -> None:
        async with trio.open_nursery() as tasks:
            while True:
                now_ms = self._clock.now_ms()
                due = sorted((on, key) for key, on in self._due.items() if key not in self._under_way)
                for _on, key in [one for one in due if not now_ms < one[0] <= now_ms + _LONGEST_DELAY_MS][
                    : _AT_ONCE - len(self._under_way)
                ]:
                    self._under_way.add(key)
                    tasks.start_soon(self._attempt, key)
                later = min((on for on, _key in due if on > now_ms), default=now_ms + _LOOK_SECONDS * 1000)
                await self._wakeup.wait(min((later - now_ms) / 1000, _LOOK_SECONDS))

    async def _attempt(self, key: int) -> None:
        try:
            if (subscription := self._subscriptions.get(key)) is not None:
                await self._shake(subscription)
            self._outage.succeeded()
        except StoreError as error:
            self._outage.failed(error)
            await trio.sleep(1)
        finally:
            self._under_way.discard(key)
            self._wakeup.set()

    async def _shake(self, subscription: Subscription) -> None:
        record = subscription.record
        if self._callbacks is None or record.callback_url is None or record.nonce is None:
            return
        outcome = await self._callbacks.shake_hands(
            record.callback_url,
            application_id=subscription.names.application_id,
            subscription_id=record.id,
            nonce=self._vault.open(record.nonce),
        )
        tries, next_on = record.handshake_tries + 1, None
        if outcome.http_status is None:
            _log.info("handshake_failed", subscription=record.id, reason=outcome.text)
            last_on = record.created_on + VALIDATION_HOURS * 3_600_000
            # After the last of the delays, which is the longest one, that delay again.
            delay = RETRY_SECONDS[min(tries, len(RETRY_SECONDS)) - 1]
            next_on = self._clock.now_ms() + delay * 1000
            if next_on >= last_on and self._clock.may_delete():
                next_on = None
        await self._subscriptions.note_handshake(record.key, tries=tries, next_on=next_on)
