"""The delivery log of a subscription, its replay, and the messages of a notification (reference 11.4 and 11.5)."""

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from broker.accounts.tokens import Caller
from broker.errors import REQUIRED, ValidationFailed, invalid
from broker.subscriptions.log import Delivery, ReadableNotification
from broker.subscriptions.room import SubscriptionsRoom
from broker.subscriptions.subscription import Subscription
from broker.subscriptions.subscriptions import NOT_ACTIVE
from config.limits import DELIVERY_DAYS, IDS_MAX, REPLAY_NOTIFICATIONS
from protocols.http.calls import USER_OR_APPLICATION, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.messages import MessageObject
from protocols.http.rest.subscriptions import SUBSCRIPTION, SUBSCRIPTIONS, SubscriptionCalls
from protocols.http.schema import (
    Amount,
    Count,
    Data,
    Id,
    NumberedPage,
    Offset,
    Shape,
    Timestamp,
    about,
    absent_if_none,
    integer,
    one_of,
    spliced,
    time_ms,
)
from protocols.rendering import shown_entry

_STATUSES: Final = ("PENDING", "DELIVERED", "FAILED")
_EXAMPLE: Final[dict[str, Any]] = {
    "id": samples.NOTIFICATION,
    "status": "PENDING",
    "attempts": [{"ts": samples.TS, "durationMs": 120, "httpStatus": 500, "excerpt": "out of order"}],
    "nextAttemptOn": samples.TS + 5_000,
}


class _Attempt(Shape, kw_only=True):
    ts: Timestamp
    duration_ms: Annotated[int, integer("How long it took, in milliseconds", lowest=0)]
    http_status: Annotated[int, integer("Of the answer; absent without one")] | UnsetType = UNSET
    error: Annotated[str, about("Why there was no answer; absent with one")] | UnsetType = UNSET
    excerpt: Annotated[str, about("Beginning of an answer other than 2xx")] | UnsetType = UNSET


class DeliveryObject(Shape, kw_only=True):
    shape = "Delivery"
    example = _EXAMPLE

    id: Annotated[Id, about("Of the notification")]
    status: Annotated[str, one_of(_STATUSES)]
    attempts: Annotated[list[_Attempt], about("The last 20, oldest first")]
    next_attempt_on: Annotated[int, time_ms("When the next attempt is due")] | UnsetType = UNSET


class _DeliveriesQuery(Shape):
    status: Annotated[Literal["PENDING", "DELIVERED", "FAILED"], about("Only those")] | None = None
    count: Count = 100
    offset: Offset = 0


_Time = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # as the store keeps times


class _Replay(Shape, kw_only=True):
    example = {"startDate": samples.TS, "endDate": samples.CTS}

    ids: (
        Annotated[list[str], Meta(min_length=1, max_length=IDS_MAX, description="Notifications; or a range of time")]
        | None
    ) = None
    start_date: Annotated[_Time, time_ms("Without `ids`: those made from this time on")] | None = None
    end_date: Annotated[_Time, time_ms("Without `ids`: up to this time")] | None = None


class _Replayed(Shape):
    example = {"ids": [samples.NOTIFICATION]}

    ids: Annotated[list[Id], about("The notifications that are delivered again, with the same ids")]


class _MessagesQuery(Shape):
    order: Annotated[Literal["asc", "desc"], about("By ts")] = "asc"
    count: Count = 100
    offset: Offset = 0


class _Messages(Shape):
    example = {"order": "asc", "total": 1, "offset": 0, "count": 1, "data": [MessageObject.example]}

    order: Annotated[str, one_of(("asc", "desc"))]
    total: Amount
    offset: Amount
    count: Amount
    data: Annotated[list[MessageObject], about("Messages; Actions or alarms of a subscription to these")]


class NotificationCalls(RestCalls):
    chapter = SUBSCRIPTIONS
    path_names = {
        **SubscriptionCalls.path_names,
        "nid": (Annotated[Id, about("A notification")], samples.NOTIFICATION),
    }

    def __init__(self, subscriptions: SubscriptionsRoom) -> None:
        self._subscriptions = subscriptions.subscriptions
        self._log = subscriptions.log

    async def _subscription(self, caller: Caller, subscription_id: str) -> Subscription:
        return await self._subscriptions.find(caller, subscription_id)

    async def _notification(self, caller: Caller, nid: str) -> ReadableNotification:
        return await self._log.find(caller, nid)

    @RestCall(
        "GET",
        f"{SUBSCRIPTION}/deliveries",
        tokens=USER_OR_APPLICATION,
        on=_subscription,
        summary="The delivery log",
        about=f"Newest first, for {DELIVERY_DAYS} days at most. FAILED has no further attempts; it can be replayed.",
    )
    async def deliveries(
        self, subscription: Subscription, query: _DeliveriesQuery
    ) -> NumberedPage[list[DeliveryObject]]:
        found, total = await self._log.page(subscription, query.status, offset=query.offset, limit=query.count)
        return NumberedPage([_delivery(one) for one in found], total, query.offset, len(found))

    @RestCall(
        "POST",
        f"{SUBSCRIPTION}/deliveries/replay",
        tokens=USER_OR_APPLICATION,
        on=_subscription,
        summary="Deliver notifications again",
        about=f"Those with these ids, or the first {REPLAY_NOTIFICATIONS} that were made in a range of time; oldest "
        "first, with their ids and a fresh signature. One that waits for a retry gets it now.",
        refusals={409: f"{NOT_ACTIVE}."},
    )
    async def replay(self, subscription: Subscription, body: _Replay) -> Data[_Replayed]:
        if body.ids is not None:
            return Data(_Replayed(await self._log.replay(subscription, ids=body.ids)))
        if body.start_date is None or body.end_date is None:
            raise ValidationFailed.of("startDate" if body.start_date is None else "endDate", REQUIRED)
        if body.start_date > body.end_date:
            raise ValidationFailed.of("startDate", invalid("must not be after endDate"))
        again = await self._log.replay(subscription, ids=None, start_ms=body.start_date, end_ms=body.end_date)
        return Data(_Replayed(again))

    @RestCall(
        "GET",
        "/notifications/{nid}/messages",
        tokens=USER_OR_APPLICATION,
        on=_notification,
        summary="The messages of a notification",
        about=f"For {DELIVERY_DAYS} days, for tokens of the subscription's application and user.",
    )
    async def messages(self, caller: Caller, notification: ReadableNotification, query: _MessagesQuery) -> _Messages:
        found, total = await self._log.entries(
            caller, notification, order=query.order, offset=query.offset, limit=query.count
        )
        entries = spliced(shown_entry(one) for one in found)
        return _Messages(query.order, total, query.offset, len(entries), entries)


def _delivery(one: Delivery) -> DeliveryObject:
    attempts = [
        _Attempt(
            ts=attempt.ts,
            duration_ms=attempt.duration_ms,
            http_status=absent_if_none(attempt.http_status),
            error=absent_if_none(attempt.error),
            excerpt=absent_if_none(attempt.excerpt),
        )
        for attempt in one.attempts
    ]
    return DeliveryObject(id=one.id, status=one.status, attempts=attempts, next_attempt_on=absent_if_none(one.next_on))
