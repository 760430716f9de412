"""/messages and /actions: sending and searching (reference 9)."""

import time
from typing import Any

import msgspec
from msgspec import Raw
from quart import Blueprint, Response

from broker.accounts.permissions import Permission
from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.errors import Finding, ValidationFailed
from broker.limits.meters import Channel
from broker.nesting import check_nesting
from broker.services import Services
from config.limits import MAX_MESSAGE_BODY_BYTES, PAGE_COUNT_DEFAULT
from protocols.http.allowances import charge_to
from protocols.http.answers import json_answer, page_of, search_answer
from protocols.http.body import Query, integer, members, read_body
from protocols.http.guard import APPLICATION, DEVICE, USER, Guard
from protocols.http.rest.searching import ORDERS, Readable, Times, field_presence, filtered_values
from protocols.rendering import message_entry
from storage.keys import Position
from storage.messages import Match


def messages_blueprint(services: Services, guard: Guard) -> Blueprint:
    routes = Blueprint("messages", __name__)
    sending, searches = _Sending(services), _Searches(services)

    @routes.post("/messages")
    async def send_message() -> Response:
        caller = await guard.caller(USER, APPLICATION, DEVICE, channel=Channel.MESSAGES)
        post = members(await read_body(limit=MAX_MESSAGE_BODY_BYTES), _Post)
        if _kind(post, "message", "action") == "action":
            return await sending.action(caller, post)
        return await sending.message(caller, post)

    @routes.post("/actions")
    async def send_action() -> Response:
        caller = await guard.caller(USER, APPLICATION, DEVICE, channel=Channel.MESSAGES)
        post = members(await read_body(limit=MAX_MESSAGE_BODY_BYTES), _Post)
        _kind(post, "action")
        return await sending.action(caller, post)

    @routes.get("/messages")
    async def search_messages() -> Response:
        started = time.perf_counter()
        caller = await guard.caller(USER, APPLICATION, DEVICE)
        query = Query.of_request()
        mid = query.text("mid")
        found = await (searches.by_range(caller, query) if mid is None else searches.by_mid(caller, query, mid))
        return search_answer(found, started)

    @routes.get("/messages/last")
    async def last_messages() -> Response:
        started = time.perf_counter()
        caller = await guard.caller(USER, APPLICATION, DEVICE)
        return search_answer(await searches.last(caller, Query.of_request()), started)

    return routes


# Sending


class _Post(msgspec.Struct, gc=False):
    """The body of both calls. `data` and `ts` stay as they came."""

    sdid: str | None = None
    ddid: str | None = None
    type: str | None = None
    data: Raw = Raw()
    ts: Raw = Raw()


def _kind(post: _Post, *allowed: str) -> str:
    """Raises ValidationFailed for a type that this call does not take. Absent is the first one."""
    kind = (post.type or allowed[0]).lower()
    if kind not in allowed:
        raise ValidationFailed.of("type", "Invalid value")
    return kind


class _Sending:
    """Answers come after the commit: what was acknowledged is stored, and every later read sees it."""

    def __init__(self, services: Services) -> None:
        self._ingest = services.messages.ingest
        self._devices = services.devices.registry
        self._permissions = services.accounts.permissions

    async def message(self, caller: Caller, post: _Post) -> Response:
        sdid = post.sdid or caller.device_id
        data = _required(post, "sdid", sdid)
        device = await self._writable(caller, sdid)
        charge_to(device)
        await self._ingest.wait_room()
        payload = _payload(data, anything=device.manifest.takes_any_payload)
        position = self._ingest.submit(device, payload, _ts(post.ts))
        return await self._stored(position)

    async def action(self, caller: Caller, post: _Post) -> Response:
        ddid = post.ddid or caller.device_id
        data = _payload(_required(post, "ddid", ddid))
        destination = await self._writable(caller, ddid)
        source = destination
        if post.sdid and post.sdid != destination.id:
            source = await self._writable(caller, post.sdid)
        charge_to(source, by_day=destination)
        await self._ingest.wait_room()
        position = self._ingest.submit_action(source, destination, data, _ts(post.ts))
        return await self._stored(position)

    async def _writable(self, caller: Caller, device_id: str | None) -> Device:
        device = await self._devices.find(device_id or "")
        await self._permissions.require(caller, device, Permission.WRITE)
        return device

    async def _stored(self, position: Position) -> Response:
        await self._ingest.wait_committed()
        return json_answer({"data": {"mid": self._ingest.mid(position)}})


def _required(post: _Post, id_name: str, device_id: str | None) -> bytes:
    """`data` as it came. Raises ValidationFailed for whatever of the two there is not."""
    findings = [] if device_id else [Finding(id_name, ("Required parameter",))]
    data = bytes(post.data)
    if data in {b"", b"null"}:
        findings.append(Finding("data", ("Required parameter",)))
    if findings:
        raise ValidationFailed(tuple(findings))
    return data


def _payload(data: bytes, *, anything: bool = False) -> bytes:
    """The JSON text of an object, which may come as one or as a text that holds one (reference 8.4).

    A device whose Manifest has a transform may send `anything`: a text is its bytes, everything else is JSON. Raises
    ValidationFailed.
    """
    if data.startswith(b"{"):
        return data
    try:
        text = msgspec.json.decode(data, type=str).encode() if data.startswith(b'"') or not anything else data
        if not anything:
            check_nesting(text)
            msgspec.json.decode(text, type=dict[str, Raw])
    except ValueError:
        raise ValidationFailed.of("data", "Invalid value") from None
    return text


def _ts(given: Raw) -> object:
    """As it came, a number in a text as the number; what is no time at all is refused where times are checked."""
    if bytes(given) in {b"", b"null"}:
        return None
    try:
        ts = msgspec.json.decode(given)
    except msgspec.DecodeError:
        return ""
    if isinstance(ts, str):
        return integer(ts) if integer(ts) is not None else ts
    return "" if ts is None else ts


# Searching


class _Searches:
    """What the caller asks for is looked up and checked here; `History` only finds."""

    def __init__(self, services: Services) -> None:
        self._history = services.messages.history
        self._permissions = services.accounts.permissions
        self._readable = Readable(services)

    async def by_mid(self, caller: Caller, query: Query, mid: str) -> dict[str, Any]:
        uid = query.text("uid")
        if uid is not None:
            uid = await self._readable.user_for(caller, uid)
        found = await self._history.by_mid(mid)
        about: dict[str, object] = {"mid": mid, "count": PAGE_COUNT_DEFAULT, "order": ORDERS[0]}
        if found is None or uid not in {None, found[1].owner_id}:
            return page_of((), uid=uid or caller.user_id, **about)
        message, device = found
        await self._permissions.require(caller, device, Permission.READ)
        return page_of((message_entry(message),), uid=message.uid, sdid=message.sdid, **about)

    async def by_range(self, caller: Caller, query: Query) -> dict[str, Any]:
        uid, sdid, devices = await self._readable.chosen(caller, query, "sdid")
        times = Times.of(query)
        match = Match(field_presence(query), filtered_values(query))
        query.check()
        page = await self._history.search(
            devices,
            start_ms=times.start_ms,
            end_ms=times.end_ms,
            order=times.order,
            count=times.count,
            cursor=times.cursor,
            match=match,
        )
        return page_of(
            map(message_entry, page.messages),
            uid=uid,
            sdid=sdid,
            startDate=times.start_ms,
            endDate=times.end_ms,
            count=times.count,
            order=times.order,
            next=page.next,
            prev=page.prev,
        )

    async def last(self, caller: Caller, query: Query) -> dict[str, Any]:
        sdids, count, field = query.ids("sdids", required=True), query.count(), field_presence(query)
        query.check()
        devices = await self._readable.listed(caller, sdids)
        messages = await self._history.latest(devices, count=count, field=field)
        return page_of(map(message_entry, messages), sdids=",".join(sdids), count=count)
