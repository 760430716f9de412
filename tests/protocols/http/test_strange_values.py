"""A value out of range or of a strange type is an error of the request, never one of the server (reference 3.2)."""

import json
from contextlib import suppress
from typing import Any, Final

import httpx
import msgspec
import pytest

from broker.accounts.tokens import TokenKind
from broker.errors import ValidationFailed
from broker.services import Services
from config.settings import Discover, Limits, Mqtt, Settings
from protocols.http.application import CALLS
from protocols.http.calls import RestCall
from protocols.http.reading import json_object
from protocols.http.reading import members as read
from protocols.http.rest.batches import NewBatch
from protocols.http.rest.sending import NewAction, NewMessage
from protocols.http.rest.wanted import NewWanted
from tests.factories import ADA_TOKEN, APPLICATION_TOKEN, BOBS, KITCHEN, KITCHEN_TOKEN, World
from tests.properties import every_nth_outside_ci
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_order_of_checks import PARAMETER, Named, named, rows
from tests.rows import each_row
from tests.wording import INVALID

pytestmark = pytest.mark.slow


__all__ = ["named"]

#: Infinite as a double; more digits than Python reads; more than the store takes; and what is no number at all.
VALUES: Final = ("1e999", "-" + "9" * 5_000, "9" * 400, "9" * 30, "[]", "{}", r'"\ud800"')
TOKENS: Final = {
    TokenKind.USER: ADA_TOKEN,
    TokenKind.APPLICATION: APPLICATION_TOKEN,
    TokenKind.DEVICE: KITCHEN_TOKEN,
}
#: Objects that a path names, by method and path, in the words of the fixture `named`.
NAMED: Final = {(method, PARAMETER.sub("{}", path)): PARAMETER.findall(path) for method, path, _ in rows()}
BODIES: Final = [call for call in CALLS if call.takes_body and not call.needs_certificate]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """With room for exports, and no limit that a hundred requests reach."""
    return Settings(
        state_dir=settings.state_dir,
        limits=Limits(rate_limits="off", quotas="off"),
        mqtt=Mqtt(topics="open"),
        discover=(Discover(KITCHEN, "ada@example.org"), Discover(BOBS, "bob@example.org")),
    )


def members(example: Any) -> list[list[str | int]]:
    """The paths of all members of a JSON value."""
    found: list[list[str | int]] = []
    items = enumerate(example) if isinstance(example, list) else example.items() if isinstance(example, dict) else ()
    for name, value in items:
        found += [[name], *([name, *rest] for rest in members(value))]
    return found


def bodies(call: RestCall) -> list[bytes]:
    """The example of the call, once with every third value in the place of each member, and each of these alone.

    What a call does not get, the next one gets, so each kind of member meets each value.
    """
    given = getattr(call.body, "example", None) or (call.accepts.example if call.accepts else None)
    example: dict[str, Any] = given if isinstance(given, dict) else {}
    names = (
        [field.encode_name for field in msgspec.structs.fields(call.body)]
        if hasattr(call.body, "__struct_fields__")
        else []
    )
    turn = BODIES.index(call) % len(VALUES)
    values = every_nth_outside_ci(2, (VALUES[turn:] + VALUES[:turn])[::3])
    found = [value.encode() for value in values]
    paths: list[list[Any]] = [*members(example), *([name] for name in names if name not in example)]
    for path in paths:
        document = json.loads(json.dumps(example))
        holder: Any = document
        for name in path[:-1]:
            holder = holder[name]
        holder[path[-1]] = "VALUE"
        found += [json.dumps(document).replace('"VALUE"', value).encode() for value in values]
    return found


@each_row("call", BODIES)
async def test_no_value_in_a_body_is_an_error_of_the_server(
    api: httpx.AsyncClient, services: Services, world: World, named: dict[str, Named], call: RestCall
) -> None:
    form = PARAMETER.sub("{}", call.path)
    names = NAMED.get((call.method, form), ["{type}"])  # the table leaves out what third parties call: on types
    path = form.format(*(named[name.strip("{}")].own for name in names))
    headers = {"Content-Type": "application/json", **(bearer(TOKENS[call.tokens[0]]) if call.tokens else {})}
    for body in bodies(call):
        answer = await api.request(call.method, path, content=body, headers=headers)
        assert answer.status_code < 500, (body[:200], answer.text)
        if answer.status_code == 400:
            assert "error" in answer.json(), body[:200]


@each_row("call", [call for call in BODIES if call.is_object or hasattr(call.body, "__struct_fields__")])
@each_row("value", VALUES[:4])
def test_a_number_out_of_range_is_refused_with_its_path_wherever_it_is(call: RestCall, value: str) -> None:
    """Values of devices are excepted: their numbers are judged as on every protocol."""
    body = f'{{"given":[0,{{"inner":{value}}}]}}'.encode()
    if call.body in {NewMessage, NewAction, NewBatch, NewWanted}:
        with suppress(ValidationFailed):
            read(body, call.body)
        return
    with pytest.raises(ValidationFailed) as caught:
        json_object(body) if call.is_object else read(body, call.body)
    assert [(one.field, one.messages) for one in caught.value.findings] == [("given.1.inner", (INVALID,))]
