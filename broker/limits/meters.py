"""Rate limits: numbers of calls in any 60 seconds and per UTC day (reference 21.1).

A meter counts the calls of one caller on one channel. A front end gets the meter once for a connection or a call and
calls `count` for every call; that is synchronous and costs about a microsecond. The minute is measured by the steady
clock, which cannot be set; the day is a calendar day.

A meter is in memory while a front end holds it or while there was a call in the last minute; of an idle one, the ledger
keeps the count of the day.
"""

from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum
from typing import Literal
from weakref import WeakValueDictionary

import msgspec

from broker.accounts.tokens import Caller, TokenKind
from broker.clock import Clock
from broker.limits.ledger import Ledger, LedgerBatch
from broker.limits.periods import PeriodUsage, utc_day
from broker.limits.refusals import RateLimitExceeded, Standing
from broker.limits.window import WINDOW_MS, Window
from broker.trace.refusals import Refusals
from config.rates import Rate
from config.settings import Limits
from storage.keys import DeviceKey
from storage.records import CallsRecord

_DROPPED_AT_ONCE = 2


class Channel(Enum):
    """A row of the table of rate limits (reference 21.1). Each channel has counters of its own."""

    REST = "rest"
    MESSAGES = "messages"  # POST /messages and /actions
    WEBSOCKET = "websocket"
    MQTT = "mqtt"
    COAP = "coap"


_CHANNELS = frozenset(channel.value for channel in Channel)
Rates = Mapping[tuple[Channel, TokenKind], Rate]


def rates_of(limits: Limits) -> Rates:
    """The table of rate limits from the settings. On MQTT and CoAP all callers are devices."""
    rows = {
        Channel.REST: (limits.rest_user, limits.rest_device, limits.rest_application),
        Channel.MESSAGES: (limits.messages_user, limits.messages_device, limits.messages_application),
        Channel.WEBSOCKET: (limits.websocket_user, limits.websocket_device, limits.websocket_application),
        Channel.MQTT: (None, limits.mqtt_device, None),
        Channel.COAP: (None, limits.coap_device, None),
    }
    kinds = (TokenKind.USER, TokenKind.DEVICE, TokenKind.APPLICATION)
    return {
        (channel, kind): Rate.parse(text)
        for channel, texts in rows.items()
        for kind, text in zip(kinds, texts, strict=True)
        if text is not None
    }


class Meter:
    """The calls of one caller on one channel."""

    __slots__ = (
        "__weakref__",
        "_day",
        "_host",
        "_is_noted",
        "_now_ms",
        "_overhead",
        "_steady_ms",
        "_unsaved",
        "_window",
        "rate",
        "whose",
    )

    def __init__(self, rate: Rate, day: PeriodUsage, window: Window, clock: Clock, host: "Meters") -> None:
        self.rate = rate
        self._day = day
        self._window = window
        self._overhead: Window | None = None  # of frames that are no messages; made when there is one
        self._now_ms = clock.now_ms
        self._steady_ms = clock.steady_ms
        self._host = host
        self._is_noted = False
        self._unsaved = 0
        self.whose = ""  # the id of the caller, for the log

    @property
    def name(self) -> str:
        return self._day.name

    def count(self) -> None:
        """Count a call, valid or not. Raises RateLimitExceeded; a refused call is not counted."""
        while not self.try_count():
            self._require_room(self._now_ms(), self._steady_ms())

    def count_overhead(self) -> None:
        """Count a frame that carries no message. They have a limit of their own, as high as that of
        messages. Raises RateLimitExceeded; a refused frame is not counted."""
        steady_ms, rate = self._steady_ms(), self.rate
        if self._overhead is None:
            self._overhead = Window()
        if not self._overhead.has_room(rate.minute, steady_ms):
            wait_ms = (self._overhead.oldest(steady_ms) or 0) + WINDOW_MS - steady_ms
            standing = self.standing()
            reset = Rate(_seconds(self._now_ms() + wait_ms), standing.reset_seconds.day)
            standing = Standing(rate, Rate(0, standing.remaining.day), reset)
            refusal = RateLimitExceeded(_seconds(wait_ms), "MINUTE", standing)
            self._host.note_refusal(self, refusal)
            raise refusal
        self._overhead.add(steady_ms)

    def try_count(self) -> bool:
        """Count a call when there is clearly room for it. After False nothing is counted, and `count` decides."""
        # Inlined, because every message calls this; `_require_room` checks the same and raises.
        now_ms, steady_ms = self._now_ms(), self._steady_ms()
        day, window, rate = self._day, self._window, self.rate
        if (
            len(window.times) - window.first >= rate.minute
            or day.used >= rate.day
            or not day.since_ms <= now_ms < day.until_ms
        ):
            return False
        window.times.append(steady_ms)
        day.used += 1
        self._unsaved += 1
        if not self._is_noted:
            self._is_noted = True
            self._host.note(self)
        return True

    def check(self) -> None:
        """Raise RateLimitExceeded if the next call would be refused. Nothing is counted."""
        self._require_room(self._now_ms(), self._steady_ms())

    def _require_room(self, now_ms: int, steady_ms: int) -> None:
        day, rate = self._day, self.rate
        if not day.since_ms <= now_ms < day.until_ms:
            day.turn(now_ms)
        if day.used >= rate.day:  # first: when the day is used up, waiting a minute does not help
            raise self._refusal("DAILY", day.until_ms - now_ms)
        if not self._window.has_room(rate.minute, steady_ms):
            oldest_ms = self._window.oldest(steady_ms) or 0
            raise self._refusal("MINUTE", oldest_ms + WINDOW_MS - steady_ms)

    def _refusal(self, window: Literal["MINUTE", "DAILY"], wait_ms: int) -> RateLimitExceeded:
        refusal = RateLimitExceeded(_seconds(wait_ms), window, self.standing())
        self._host.note_refusal(self, refusal)
        return refusal

    def standing(self) -> Standing:
        """The caller's limits, remaining calls and reset times now."""
        now_ms, steady_ms = self._now_ms(), self._steady_ms()
        day, rate = self._day, self.rate
        if not day.since_ms <= now_ms < day.until_ms:
            day.turn(now_ms)
        oldest_ms = self._window.oldest(steady_ms)
        reset_ms = now_ms if oldest_ms is None else now_ms + oldest_ms + WINDOW_MS - steady_ms
        return Standing(
            limit=rate,
            remaining=Rate(max(0, rate.minute - self._window.calls(steady_ms)), max(0, rate.day - day.used)),
            reset_seconds=Rate(_seconds(reset_ms), day.until_ms // 1000),
        )

    def save_into(self, batch: LedgerBatch) -> None:
        batch.put(self._day)
        batch.calls.append(CallsRecord(self.name, batch.at_ms, self._unsaved))
        self._host.counted += self._unsaved
        self._unsaved = 0
        self._is_noted = False

    def made_elsewhere(self, calls: int, steady_ms: int) -> None:
        self._window.add(steady_ms, calls)

    def is_idle(self, steady_ms: int) -> bool:
        """Whether the count is written and the last minute is empty."""
        return not self._is_noted and not self._window.calls(steady_ms)


def _seconds(milliseconds: int) -> int:
    """Seconds, rounded up, so that a caller who waits this long is not too early."""
    return -(-milliseconds // 1000)


class MeterStatistics(msgspec.Struct, frozen=True):
    """`busy` meters had a call in the last minute; `counted` is the number of calls saved since the start."""

    busy: int
    counted: int
    refused: int


class Meters:
    """One meter for each caller and channel."""

    def __init__(self, rates: Rates | None, ledger: Ledger, clock: Clock, refusals: Refusals) -> None:
        """Count calls against `rates`; None: count nothing."""
        self._refusals = refusals
        self._rates = rates
        self._ledger = ledger
        self._clock = clock
        self._live: WeakValueDictionary[str, Meter] = WeakValueDictionary()
        self._busy: OrderedDict[str, Meter] = OrderedDict()  # in the order of their last change
        self.counted = self.refused = 0
        ledger.on_calls = self._made_elsewhere

    def _made_elsewhere(self, calls: CallsRecord, steady_ms: int) -> bool:
        """Count calls that another node got; False: the meter is not in memory."""
        if (meter := self._live.get(calls.name)) is None:
            return False
        meter.made_elsewhere(calls.calls, steady_ms)
        self._busy[meter.name] = meter
        self._busy.move_to_end(meter.name)
        return True

    @property
    def are_on(self) -> bool:
        return self._rates is not None

    def of(self, channel: Channel, caller: Caller) -> Meter | None:
        """The caller's meter: that of the device, of the application, or of the user in the application.

        None when rate limits are off.
        """
        if self._rates is None:
            return None
        match caller.kind:
            case TokenKind.DEVICE:
                actor = f"device {caller.device}"
            case TokenKind.APPLICATION:
                actor = f"application {caller.application}"
            case TokenKind.USER:
                actor = f"user {caller.application} {caller.user}"
        # Each page of the console makes several calls (reference 21.1).
        kind = TokenKind.APPLICATION if caller.is_console else caller.kind
        meter = self.named(f"{channel.value} {actor}", self._rates[channel, kind])
        if not meter.whose:
            meter.whose = caller.actor
        return meter

    def of_device(self, channel: Channel, device: DeviceKey, device_id: str) -> Meter | None:
        """The meter that `of` gives for a token of the device; also of one that has a certificate instead."""
        if self._rates is None:
            return None
        meter = self.named(f"{channel.value} device {device}", self._rates[channel, TokenKind.DEVICE])
        if not meter.whose:
            meter.whose = f"device {device_id}"
        return meter

    def named(self, name: str, rate: Rate) -> Meter:
        """The meter of this name: one object for all who ask."""
        meter = self._live.get(name)
        if meter is None:
            day = PeriodUsage(name, utc_day, self._ledger.kept(name), self._clock.now_ms())
            window = Window()
            for moment_ms, calls in self._ledger.take_recent(name):
                window.add(moment_ms, calls)
            meter = self._live[name] = Meter(rate, day, window, self._clock, self)
            if window.calls(self._clock.steady_ms()):
                self._busy[name] = meter
        return meter

    def rate_named(self, name: str, channel: Channel, kind: TokenKind) -> Rate | None:
        """The rate of the caller with this name; None if rate limits are off."""
        live = self._live.get(name)
        return live.rate if live is not None else None if self._rates is None else self._rates.get((channel, kind))

    def note(self, meter: Meter) -> None:
        """The meter has changed: write it, and drop idle meters."""
        self._ledger.note(meter)
        self._busy[meter.name] = meter
        self._busy.move_to_end(meter.name)
        # Each call drops up to two idle meters, so no scan over all of them is needed.
        steady_ms = self._clock.steady_ms()
        for _ in range(_DROPPED_AT_ONCE):
            first = next(iter(self._busy.values()))
            if not first.is_idle(steady_ms):
                break
            del self._busy[first.name]

    def note_refusal(self, meter: Meter, refusal: RateLimitExceeded) -> None:
        self.refused += 1
        channel = meter.name.partition(" ")[0]
        self._refusals.note(
            f"{channel}_rate_refused",
            reason=str(refusal),
            source=meter.name,
            caller=meter.whose or meter.name,
            error_id=refusal.error_id,
        )

    def renew(self, rates: Rates) -> None:
        """Replace the rates, also of meters in use. Without rates at the start, nothing changes."""
        if self._rates is None:
            return
        self._rates = rates
        kinds = {"device": TokenKind.DEVICE, "application": TokenKind.APPLICATION, "user": TokenKind.USER}
        for name, meter in self._live.items():
            channel, _, whose = name.partition(" ")
            if channel in _CHANNELS:  # others have rates of their own
                meter.rate = rates[Channel(channel), kinds[whose.partition(" ")[0]]]

    def statistics(self) -> MeterStatistics:
        return MeterStatistics(len(self._busy), self.counted, self.refused)
