"""/devices/…/failures, …/refusals, …/dropped and …/quota: what became of messages (reference 9.6)."""

from typing import Annotated

from broker.accounts.permissions import Permission
from broker.devices.registry import Device
from broker.limits.allowance import Usage
from broker.limits.room import LimitsRoom
from broker.messages.room import MessagesRoom
from protocols.http.calls import USER_OR_APPLICATION, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.named import named_device
from protocols.http.schema import Amount, Data, NumberedPage, Paging, Shape, Timestamp, about


class _Failure(Shape):
    example = {
        "mid": samples.MID,
        "cts": samples.CTS,
        "reason": "nothing remained after normalization",
        "payload": '{"opne":true}',
    }

    mid: Annotated[str, about("The id that its sender got")]
    cts: Timestamp
    reason: str
    payload: Annotated[str, about("As it came; bytes that are not text begin with `hex:`")]


class _Failures(Shape):
    failures: list[_Failure]


class _Refusal(Shape):
    example = {
        "ts": samples.TS,
        "code": 400,
        "message": "Invalid ts value (in future)",
        "actor": f"device {samples.DID}",
        "address": "192.0.2.17",
    }

    ts: Timestamp
    code: int
    message: str
    actor: Annotated[str, about("`device`, `user` or `application`, and the id; empty: nobody proven")]
    address: Annotated[str, about("Where it came from")]


class _Refusals(Shape):
    refusals: list[_Refusal]


class _LostField(Shape):
    example = {"ts": samples.CTS, "field": "opne", "message": "not in the Manifest"}

    ts: Annotated[Timestamp, about("When the last message with it came")]
    field: Annotated[str, about("The dotted path")]
    message: Annotated[str, about("Why it was not kept")]


class _LostFields(Shape):
    fields: list[_LostField]


class _Usage(Shape):
    example = {"used": 27, "limit": 100_000, "since": samples.TS, "until": samples.CTS}

    used: Amount
    limit: Annotated[int, about("-1 is unlimited")]
    since: Timestamp
    until: Annotated[Timestamp, about("When counting restarts")]


class _Quota(Shape):
    organization: Annotated[_Usage, about("Units of the organization of the type, in this month")] | None
    device: Annotated[_Usage, about("Messages of this device, in this day; null without a plan")] | None


def _of_owner(what: str, summary: str, about_it: str) -> RestCall:
    return RestCall(
        "GET",
        f"/devices/{{did}}/{what}",
        tokens=USER_OR_APPLICATION,
        on=named_device(Permission.MANAGE),
        summary=summary,
        about=f"{about_it} For the owner only.",
    )


class DeviceTrailCalls(RestCalls):
    chapter = Chapter(
        "Lost messages",
        "What became of messages that no search shows: failed and refused ones; and how much of the quotas is used.",
    )

    def __init__(self, messages: MessagesRoom, limits: LimitsRoom) -> None:
        self._history = messages.history
        self._refused = messages.ingest.refused
        self._lost_fields = messages.ingest.lost_fields
        self._quotas = limits.charged

    @_of_owner(
        "failures",
        "Failed messages of a device",
        "The newest first. These messages were accepted, and nothing of them remained when the Manifest was "
        "applied. They are kept for 7 days.",
    )
    async def failures(self, device: Device, query: Paging) -> NumberedPage[_Failures]:
        found, total = await self._history.failed(device, offset=query.offset, limit=query.count)
        entries = [_Failure(mid, row.cts, row.reason, row.payload) for mid, row in found]
        return NumberedPage(_Failures(entries), total, query.offset, len(entries))

    @_of_owner(
        "refusals",
        "Messages that a device was refused",
        "The last 20 messages of this device and Actions to it that were refused, the newest first. They are in "
        "memory only: a restart forgets them.",
    )
    async def refusals(self, device: Device) -> Data[_Refusals]:
        return Data(
            _Refusals(
                [_Refusal(one.at_ms, one.status, one.text, one.actor, one.address) for one in self._refused.of(device)]
            )
        )

    @_of_owner(
        "dropped",
        "Fields of a device's messages that were not kept",
        "At most 20, the newest first, each with the time of the last message that had it. Of MQTT and CoAP, one "
        "message in 10 s is looked at. They are in memory only: a restart forgets them.",
    )
    async def dropped(self, device: Device) -> Data[_LostFields]:
        found = self._lost_fields.of(device)
        return Data(_LostFields([_LostField(one.at_ms, one.field, one.message) for one in found]))

    @RestCall(
        "GET",
        "/devices/{did}/quota",
        tokens=USER_OR_APPLICATION,
        on=named_device(Permission.READ),
        summary="How much of the quotas is used",
        about="Both are null where the operator has turned quotas off.",
    )
    async def quota(self, device: Device) -> Data[_Quota]:
        if self._quotas is None:
            return Data(_Quota(None, None))
        standing = self._quotas.standing(device)
        of_device = None if standing.device is None else _usage(standing.device)
        return Data(_Quota(_usage(standing.organization), of_device))


def _usage(usage: Usage) -> _Usage:
    return _Usage(usage.used, usage.limit, usage.since_ms, usage.until_ms)
