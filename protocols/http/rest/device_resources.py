"""/devices/…/lwm2m: the resources that fields and Actions of the Manifest name (reference 18.8)."""

from typing import Annotated

from broker.accounts.permissions import Permission
from broker.device_management.device_actions import ActionState
from broker.device_management.device_resources import FieldState
from broker.device_management.room import DeviceManagementRoom
from broker.devices.registry import Device
from protocols.http.calls import USER_OR_APPLICATION, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.named import named_device
from protocols.http.schema import Data, Shape, Timestamp, about, one_of


class _ResourceField(Shape):
    example = {"field": "temperature", "path": "/3303/0/5700", "state": "observed", "message": ""}

    field: Annotated[str, about("The dotted path")]
    path: str
    state: Annotated[str, one_of(tuple(FieldState))]
    message: Annotated[str, about("Why the resource is not observed; empty when it is")]


class _ResourceAction(Shape):
    example = {"mid": samples.MID, "name": "setOn", "ts": samples.CTS, "state": "done", "message": "The device did it."}

    mid: str
    name: Annotated[str, about("The Actions of the message that are operations, separated by commas")]
    ts: Annotated[Timestamp, about("Its end; of a waiting one, when it was stored")]
    state: Annotated[str, one_of(tuple(ActionState))]
    message: str


class _Resources(Shape):
    fields: list[_ResourceField]
    actions: list[_ResourceAction]


class DeviceResourceCalls(RestCalls):
    chapter = Chapter("LWM2M resources", "Fields and Actions of the Manifest that are resources of an LWM2M device.")

    def __init__(self, device_management: DeviceManagementRoom) -> None:
        self._resources = device_management.resources
        self._actions = device_management.actions

    @RestCall(
        "GET",
        "/devices/{did}/lwm2m",
        tokens=USER_OR_APPLICATION,
        on=named_device(Permission.MANAGE),
        summary="The LWM2M resources of a device",
        about="For each field with `lwm2m`, whether the device is observed for it, and why not; the Actions that wait "
        "and the last 20 that have ended, the newest first. A restart forgets ended Actions. For the owner "
        "only.",
    )
    async def resources(self, device: Device) -> Data[_Resources]:
        fields = [_ResourceField(one.field, one.path, one.state, one.text) for one in self._resources.fields(device)]
        actions = [
            _ResourceAction(one.mid, one.name, one.at_ms, one.state, one.text) for one in self._actions.shown(device)
        ]
        return Data(_Resources(fields, actions))
