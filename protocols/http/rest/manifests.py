"""/devicetypes/{dtid}/manifests: the versions of a type and what each declares (reference 8.6)."""

import re
from typing import Final

from quart import Blueprint, Response

from broker.accounts.tokens import Caller
from broker.device_types.catalog import DeviceType, ManifestVersion
from broker.errors import NotFound
from broker.services import Services
from protocols.http.answers import json_answer
from protocols.http.guard import APPLICATION, DEVICE, USER, Guard

_LATEST: Final = "latest"
_VERSION: Final = re.compile(r"[1-9][0-9]{0,8}")


def manifests_blueprint(services: Services, guard: Guard) -> Blueprint:
    routes = Blueprint("manifests", __name__)

    async def readable(caller: Caller, dtid: str) -> DeviceType:
        device_type = await services.device_types.catalog.find(dtid)
        await services.device_types.lists.see(caller, device_type.record)
        return device_type

    @routes.get("/devicetypes/<dtid>/availablemanifestversions")
    async def versions(dtid: str) -> Response:
        async with guard.before_limit(USER, APPLICATION, DEVICE) as caller:
            device_type = await readable(caller, dtid)
        return json_answer({"data": {"versions": device_type.versions}})

    @routes.get("/devicetypes/<dtid>/manifests/<version>/properties")
    async def properties(dtid: str, version: str) -> Response:
        async with guard.before_limit(USER, APPLICATION, DEVICE) as caller:
            found = _chosen(await readable(caller, dtid), version)
        declared = found.manifest.properties()
        return json_answer({"data": {"properties": declared, "actions": declared["actions"], "version": found.version}})

    return routes


def _chosen(device_type: DeviceType, version: str) -> ManifestVersion:
    """Raises NotFound, also for the latest version of a type that has none."""
    found = None
    if version == _LATEST:
        found = device_type.latest if device_type.versions else None
    elif _VERSION.fullmatch(version):
        found = device_type.version(int(version))
    if found is None:
        raise NotFound
    return found
