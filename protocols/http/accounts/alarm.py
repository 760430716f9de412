"""/alarm, the page that the link of a notice leads to: it acknowledges an alarm (reference 12.13)."""

from quart import Blueprint, Response

from broker.alarms.alarms import AlarmBook
from broker.alarms.links import AlarmLinks
from broker.alarms.readers import AlarmReaders
from broker.errors import Conflict, NotFound
from protocols.http.accounts.forms import FormData
from protocols.http.accounts.pages import notice, pages_blueprint, render_page
from protocols.http.reading import Query
from storage.alarms import AlarmRecord

_BY = "link"


def alarm_blueprint(alarms: AlarmBook, links: AlarmLinks, readers: AlarmReaders) -> Blueprint:
    routes = pages_blueprint("alarm")

    async def _behind(code: str) -> AlarmRecord | None:
        alarm_id = links.alarm_of(code)
        if alarm_id is None:
            return None
        try:
            return await alarms.find(alarm_id)
        except NotFound:
            return None

    @routes.get("/alarm")
    async def show() -> Response:
        """Show the alarm. GET changes nothing, because programs open links to preview them; the form acknowledges."""
        code = Query.of_request().text("code") or ""
        alarm = await _behind(code)
        if alarm is None:
            return _over()
        if alarm.cleared_on is not None or alarm.acknowledged_on is not None:
            return _done(alarm)
        # The text may have values of a device that its owner may not read any more.
        text = alarm.text if await readers.may_read((alarm.id,)) else ""
        return render_page("alarm.html", alarm=alarm, text=text, code=code)

    @routes.post("/alarm")
    async def acknowledge() -> Response:
        alarm = await _behind((await FormData.of_request()).text("code"))
        if alarm is None:
            return _over()
        try:
            return _done(await alarms.acknowledge(alarm, by=_BY))
        except Conflict:
            return notice("The alarm is over", "It was cleared before.", console=("/alarms", "To the alarms"))
        except NotFound:
            return _over()

    return routes


def _done(alarm: AlarmRecord) -> Response:
    if alarm.cleared_on is not None:
        return notice("The alarm is over", "It was cleared before.", console=("/alarms", "To the alarms"))
    return notice("The alarm is acknowledged", "Nobody is told of it any more.", console=("/alarms", "To the alarms"))


def _over() -> Response:
    return notice(
        "This link does not work",
        "It is older than three days, or the alarm is gone.",
        status=404,
        console=("/alarms", "To the alarms"),
    )
