"""A declaration that leaves out a check, or does not fit its handler, is refused when its module is imported."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from quart import Response

import protocols.http.rest
from broker.accounts.permissions import Permission
from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.services import Services
from protocols.http.calls import (
    ANY_TOKEN,
    NO_TOKEN,
    NOTHING,
    USER,
    Accepts,
    Chapter,
    Counted,
    InQuery,
    RestCall,
    RestCalls,
)
from protocols.http.openapi.document import openapi_document
from protocols.http.openapi.schemas import Schemas, example_of
from protocols.http.openapi.serving import ALL_NOUNS
from protocols.http.reading import Query
from protocols.http.rest.named import named_device
from protocols.http.schema import Data, DataAndFlat, NumberedPage, Shape


class Thing(Shape):
    example = {"name": "lamp"}  # noqa: RUF012

    name: str


async def answer(self: object) -> Thing:
    return Thing("lamp")


async def on_device(self: object, device: Device) -> Thing:
    return Thing(device.id)


async def on_text(self: object, device: str) -> Thing:
    return Thing(device)


async def raw(self: object) -> Response:
    return Response(b"")


async def with_body(self: object, body: bytes) -> Thing:
    return Thing(body.decode())


async def find_nothing(self: object, caller: Caller) -> Device:
    raise NotImplementedError


async def find_in_query(self: object, caller: Caller, query: Query) -> Device:
    raise NotImplementedError


@pytest.mark.parametrize("left_out", ["tokens", "on"])
def test_who_may_call_and_on_what_is_said_of_each_call(left_out: str) -> None:
    said: dict[str, Any] = {"tokens": USER, "on": NOTHING, "summary": "A thing"}
    del said[left_out]
    with pytest.raises(TypeError, match=left_out):
        RestCall("GET", "/things", **said)


@pytest.mark.parametrize(
    ("path", "said", "handler", "problem"),
    [
        ("/devices/{did}", {"on": NOTHING}, answer, "no permission on the object"),
        ("/things", {"on": NOTHING, "tokens": NO_TOKEN}, answer, "address or nothing"),
        ("/things", {"on": NOTHING, "tokens": NO_TOKEN, "counted": Counted.MESSAGES}, answer, "address or nothing"),
        ("/things", {"on": NOTHING}, on_device, "nothing finds device"),
        ("/things", {"on": named_device(Permission.READ)}, on_device, "the finder does not take"),
        ("/devices/{did}", {"on": find_nothing}, on_device, "the finder does not take"),
        ("/devices/{did}", {"on": named_device(Permission.READ)}, on_text, "device is something else"),
        ("/things", {"on": InQuery(find_in_query)}, on_device, "nothing reads the query"),
        ("/things", {"on": NOTHING}, raw, "`answers` must describe"),
        ("/things", {"on": NOTHING}, with_body, "`accepts` must describe"),
    ],
)
def test_what_does_not_fit_is_refused(
    path: str, said: dict[str, Any], handler: Callable[..., Any], problem: str
) -> None:
    with pytest.raises(TypeError, match=problem):
        RestCall("GET", path, **({"tokens": ANY_TOKEN, "summary": "A thing"} | said))(handler)


class Things(RestCalls):
    chapter = Chapter("Things", "Some of them.")

    def __init__(self, services: Services) -> None:
        raise NotImplementedError

    @RestCall("GET", "/devices/{did}/thing", tokens=USER, on=named_device(Permission.READ), summary="A thing")
    async def show(self, device: Device) -> Data[Thing]:
        return Data(Thing(device.id))

    @RestCall("POST", "/things", tokens=USER, on=NOTHING, summary="Make")
    @RestCall("PUT", "/things", tokens=USER, on=NOTHING, summary="Replace")
    async def put(self, caller: Caller, body: Thing) -> DataAndFlat[Thing]:
        assert caller
        return DataAndFlat(body)


def test_calls_are_declared_in_the_order_in_which_they_are_written() -> None:
    assert [str(call) for call in Things.declared()] == ["GET /devices/{did}/thing", "POST /things", "PUT /things"]


def declared() -> Iterator[tuple[str, str]]:
    for noun in ALL_NOUNS:
        for call in noun.declared():
            yield call.method.lower(), call.path


#: The calls that only go through Quart, and why. All others have the fast path, too.
SLOW_PATH: Final = {
    "GET /messages/export/{exportId}/result": "the answer is a stream",
    "GET /users/{uid}/archive/result": "the answer is a stream",
    "GET /updates/urls/{downloadId}": "the answer is a stream",
    "POST /devicemgmt/devicetypes/{dtid}/images": "the body is a stream",
    "POST /messages/import": "the body is a stream",
    "POST /accounts/token": "a form of the accounts server",
    "POST /accounts/checkToken": "a form of the accounts server",
    "GET /accounts/tokenInfo": "shares its code with the forms of the accounts server",
    "GET /openapi.json": "Quart compares its ETag",
}


def test_the_types_of_the_handler_decide_which_way_a_call_goes() -> None:
    calls = {str(call): call for noun in ALL_NOUNS for call in noun.declared()}
    assert {name for name, call in calls.items() if not call.fits_fast_path} == set(SLOW_PATH)
    for call in calls.values():
        documented = replace(call, accepts=Accepts({"application/json": Thing}, {}), about="more", summary="other")
        assert documented.fits_fast_path is call.fits_fast_path, call


def test_no_handler_reads_a_request_of_quarts() -> None:
    """On the fast path there is none: `current_request` is there on both paths."""
    rest = Path(protocols.http.rest.__file__).parent
    reading = [
        path.name for path in rest.glob("*.py") if re.search(r"from quart import .*\brequest\b", path.read_text())
    ]
    assert reading == []


def test_every_declared_call_is_in_the_document_once() -> None:
    described = openapi_document("http://here/v1.1", ALL_NOUNS)["paths"]
    assert sorted(declared()) == sorted((method, path) for path, methods in described.items() for method in methods)


def test_a_shape_is_described_and_exemplified_by_its_declaration() -> None:
    schemas = Schemas()
    assert schemas.of(Data[Thing]) == {
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}},
    }
    assert list(schemas.of(DataAndFlat[Thing])["properties"]) == ["data", "name"]
    assert example_of(NumberedPage[list[Thing]]) == {"data": [{"name": "lamp"}], "total": 1, "offset": 0, "count": 1}
    assert example_of(DataAndFlat[Thing]) == {"data": {"name": "lamp"}, "name": "lamp"}


def test_a_shape_without_an_example_is_not_left_without_one() -> None:
    class Nameless(Shape):
        member: str

    with pytest.raises(LookupError):
        example_of(Nameless)
