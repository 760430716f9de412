"""/devices/…/lwm2m: the resources that fields and Actions of the Manifest name (reference 18.8)."""

from typing import Annotated

from broker.accounts.permissions import Permission
from broker.device_management.device_actions import ActionState
from broker.device_management.device_resources import FieldState
from broker.device_management.offers import Offers
from broker.device_management.room import DeviceManagementRoom
from broker.device_types.manifest import ValueClass, address_text
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
    message: Annotated[str, about("Why no value comes; empty for `observed`")]


class _ResourceAction(Shape):
    example = {"mid": samples.MID, "name": "setOn", "ts": samples.CTS, "state": "done", "message": "The device did it."}

    mid: str
    name: Annotated[str, about("The Actions of the message that are operations, separated by commas")]
    ts: Annotated[Timestamp, about("Its end; of a waiting one, when it was stored")]
    state: Annotated[str, one_of(tuple(ActionState))]
    message: str


class OfferedResource(Shape):
    example = {"name": "temperature", "path": "/3303/0/5700", "valueClass": "Double", "unit": "°C"}

    name: Annotated[str, about("The field that it would be")]
    path: str
    value_class: Annotated[str, one_of(tuple(ValueClass))]
    unit: Annotated[str, about("Empty for none")]


class ResourceOffers(Shape):
    example = {
        "sentence": "This board offers temperature (/3303/0/5700, °C).",
        "fields": [OfferedResource.example],
        "actions": ["setOn", "setOff"],
    }

    sentence: Annotated[str, about("Empty when there is nothing")]
    fields: Annotated[list[OfferedResource], about("Resources that the Manifest lacks")]
    actions: Annotated[list[str], about("Names of Actions that could write or execute resources")]


class _Resources(Shape):
    fields: list[_ResourceField]
    actions: list[_ResourceAction]
    offers: Annotated[ResourceOffers, about("What the registered device offers besides")]


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
        about="For each field with `lwm2m`, whether the device is observed for it, and why no value comes; the Actions "
        "that wait and the last 20 that have ended, the newest first; what the device offers to the Manifest. A "
        "restart of a daemon that serves alone forgets ended Actions. For the owner only.",
    )
    async def resources(self, device: Device) -> Data[_Resources]:
        fields = [
            _ResourceField(one.field, one.path, one.state, one.text) for one in await self._resources.fields(device)
        ]
        actions = [
            _ResourceAction(one.mid, one.name, one.at_ms, one.state, one.text)
            for one in await self._actions.shown(device)
        ]
        return Data(_Resources(fields, actions, shown_offers(await self._resources.offers(device))))


def shown_offers(offers: Offers) -> ResourceOffers:
    fields = [
        OfferedResource(one.name, address_text(one.path), one.value_class, one.unit_shown) for one in offers.fields
    ]
    return ResourceOffers(offers.sentence, fields, [one["name"] for one in offers.actions])
