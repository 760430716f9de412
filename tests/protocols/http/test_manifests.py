"""Manifest versions and what they declare: reference 8.6."""

import httpx
import pytest

from broker.services import Services
from tests.factories import ADA_TOKEN, APPLICATION_TOKEN, KITCHEN_TOKEN, LIGHT_TYPE, World, build_world
from tests.protocols.http.conftest import bearer
from tests.rows import each_row
from tests.type_world import add_types

pytestmark = pytest.mark.slow


VOLUME = {"volume": {"type": "Integer", "isCollection": False, "description": ""}}
TELEVISION = {
    "fields": [
        {"name": "state", "valueClass": "Boolean"},
        {
            "name": "level",
            "valueClass": "Integer",
            "unit": "NonSI.PERCENT",
            "metaData": [{"type": "MAX_VALUE_INTEGER", "value": 100}],
        },
        {"name": "colorRGB", "children": [{"name": "r", "valueClass": "Integer", "isCollection": True}]},
    ],
    "actions": [{"name": "setVolume", "parameters": [{"name": "volume", "valueClass": "Integer"}]}],
}
ACTIONS = {"setVolume": {"description": "", "isStandard": False, "parameters": VOLUME}}
FIELDS = {
    "state": {"type": "Boolean", "isCollection": False, "description": ""},
    "level": {
        "type": "Integer",
        "isCollection": False,
        "description": "",
        "unit": "%",
        "metadata": {"MAX_VALUE_INTEGER": 100},
    },
    "colorRGB": {"r": {"type": "Integer", "isCollection": True, "description": ""}},
}


@pytest.fixture
async def world(services: Services) -> World:
    world = await build_world(services.core.database, services.core.vault)
    await add_types(services.core.database, world)
    await services.device_types.manifests.upload(LIGHT_TYPE, TELEVISION)
    return world


@each_row("token", [ADA_TOKEN, APPLICATION_TOKEN, KITCHEN_TOKEN])
@each_row("version", ["2", "latest"])
@each_row("type_", [LIGHT_TYPE, "example.smart_light"])
async def test_the_properties_of_a_version(api: httpx.AsyncClient, token: str, version: str, type_: str) -> None:
    answer = await api.get(f"/devicetypes/{type_}/manifests/{version}/properties", headers=bearer(token))
    assert answer.json() == {
        "data": {"properties": {"fields": FIELDS, "actions": ACTIONS}, "actions": ACTIONS, "version": 2}
    }


@each_row(("type_", "versions"), [(LIGHT_TYPE, [1, 2]), ("dt-sensor", [1, 2]), ("dt-sensor_guard", [])])
async def test_versions_are_ascending_and_approved(api: httpx.AsyncClient, type_: str, versions: list[int]) -> None:
    answer = await api.get(f"/devicetypes/{type_}/availablemanifestversions", headers=bearer(ADA_TOKEN))
    assert answer.json() == {"data": {"versions": versions}}


@each_row(
    ("type_", "version", "token", "status", "code"),
    [
        (LIGHT_TYPE, "3", ADA_TOKEN, 404, 404),
        (LIGHT_TYPE, "0", ADA_TOKEN, 404, 404),
        (LIGHT_TYPE, "-1", ADA_TOKEN, 404, 404),
        (LIGHT_TYPE, "01", ADA_TOKEN, 404, 404),
        (LIGHT_TYPE, "LATEST", ADA_TOKEN, 404, 404),
        (LIGHT_TYPE, "9" * 30, ADA_TOKEN, 404, 404),
        ("dt-sensor", "3", ADA_TOKEN, 404, 404),  # not approved
        ("dt-sensor_guard", "latest", ADA_TOKEN, 404, 404),
        ("nothing", "1", ADA_TOKEN, 404, 1101),
        ("dt-sensor", "1", KITCHEN_TOKEN, 403, 403),
        (LIGHT_TYPE, "1", "f" * 32, 401, 401),
    ],
)
async def test_refusals(api: httpx.AsyncClient, type_: str, version: str, token: str, status: int, code: int) -> None:
    answer = await api.get(f"/devicetypes/{type_}/manifests/{version}/properties", headers=bearer(token))
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
