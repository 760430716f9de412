"""Fields of the Manifest that have the values of LWM2M resources, over the real device management (reference 18.6)."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiocoap
import cbor2
import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from broker.device_management.configuration import ConfigurationChange
from broker.device_management.sessions import ManagedSession
from broker.devices.registry import Device
from broker.errors import ValidationFailed
from broker.facts import MessagesStored
from broker.limits.meters import rates_of
from broker.services import Services
from config.settings import Limits
from protocols.coap.lwm2m import device as registered_device
from protocols.coap.lwm2m import sequence
from protocols.coap.lwm2m.server import Lwm2mServer
from storage.records import MessageRow
from storage.sql import StoreError
from tests.factories import KITCHEN, NOW_MS, World
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.lwm2m.device import (
    PATIENCE_SECONDS,
    SENML_CBOR,
    SENML_JSON,
    TEXT,
    MemoryTransport,
    ScriptedDevice,
    content,
)

TEMPERATURE, LIGHT = "/3303/0/5700", "/3311/0/5850"
FIELDS: tuple[Mapping[str, Any], ...] = (
    {"name": "temperature", "valueClass": "Double", "lwm2m": TEMPERATURE},
    {"name": "light", "children": [{"name": "on", "valueClass": "Boolean", "lwm2m": LIGHT}]},
)
OBJECTS = b"</1/0>,</3/0>,</3303/0>,</3311/0>"
SINGLE = [
    f"PUT {TEMPERATURE}?pmin=60&pmax=3600",
    f"PUT {LIGHT}?pmin=60&pmax=3600",
    f"GET {TEMPERATURE} observe",
    f"GET {LIGHT} observe",
]


class Messages:
    """The messages that were stored, in their order."""

    def __init__(self, services: Services) -> None:
        self.rows: list[MessageRow] = []
        self._changed = trio.Event()
        services.core.router.subscribe(MessagesStored, self._stored)

    def _stored(self, fact: MessagesStored) -> None:
        self.rows.extend(fact.rows)
        self._changed.set()
        self._changed = trio.Event()

    @property
    def data(self) -> list[Any]:
        return [json.loads(row.data) for row in self.rows]

    async def wait(self, number: int) -> None:
        with trio.fail_after(PATIENCE_SECONDS):
            while len(self.rows) < number:
                await self._changed.wait()


@pytest.fixture
def messages(services: Services) -> Messages:
    return Messages(services)


@pytest.fixture
async def lights(services: Services, world: World) -> Device:
    """The kitchen light, whose type has the fields."""
    await upload(services, *FIELDS)
    found = await services.devices.registry.find(KITCHEN)
    await services.device_management.configurations.change(found.type, ConfigurationChange(pmin=60, pmax=3600))
    return found


async def upload(services: Services, *fields: Mapping[str, Any]) -> None:
    await services.device_types.manifests.upload("example.smart_light", {"fields": list(fields)})


@pytest.fixture
async def server(services: Services, lights: Device, time: Time) -> AsyncIterator[Lwm2mServer]:
    server = Lwm2mServer(services, services.device_management.registrations, now=time, pause_seconds=0)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server
        nursery.cancel_scope.cancel()


@pytest.fixture
def device(device: ScriptedDevice) -> ScriptedDevice:
    device.replies[f"GET {TEMPERATURE}"] = content(TEXT, b"21.5")
    device.replies[f"GET {LIGHT}"] = content(TEXT, b"1")
    return device


async def until(is_true: Callable[[], object]) -> None:
    """Wait for what no fact tells."""
    with trio.fail_after(PATIENCE_SECONDS):
        while not is_true():
            await trio.testing.wait_all_tasks_blocked(0.01)


class TestObservations:
    async def test_begin_after_the_registration_without_device_properties(
        self, device: ScriptedDevice, messages: Messages, services: Services, lights: Device
    ) -> None:
        await device.register(payload=OBJECTS)
        await messages.wait(2)
        assert device.requests == SINGLE
        assert messages.data == [{"temperature": 21.5}, {"light": {"on": True}}]
        assert (await services.device_management.properties.of(lights, with_times=False)).reported == {}

    async def test_follow_the_reads_and_leave_the_properties_as_they_are(
        self, device: ScriptedDevice, messages: Messages, services: Services, lights: Device
    ) -> None:
        change = ConfigurationChange(device_properties_enabled=True)
        await services.device_management.configurations.change(lights.type, change)
        device.replies["GET /3303/0"] = content(SENML_JSON, b'[{"n":"5700","v":20},{"n":"5701","vs":"Cel"}]')
        await device.register(payload=OBJECTS)
        await messages.wait(2)
        assert device.requests[-4:] == SINGLE
        assert "GET /3303/0" in device.requests[:-4]
        # The Read makes no message of the field, or each registration would add one.
        assert messages.data == [{"temperature": 21.5}, {"light": {"on": True}}]
        shown = (await services.device_management.properties.of(lights, with_times=False)).reported
        assert shown["temperature"] == {"0": {"sensorValue": 21.5, "sensorUnits": "Cel"}}

    async def test_survive_updates_and_begin_again_with_a_registration(
        self, device: ScriptedDevice, messages: Messages
    ) -> None:
        await device.register(payload=OBJECTS)
        await messages.wait(2)
        for _ in range(2):
            await device.update()
        await device.notify(TEMPERATURE, 2, content(TEXT, b"22"))
        await messages.wait(3)
        assert device.requests == SINGLE
        await device.register(payload=OBJECTS)
        await messages.wait(5)
        assert device.requests == SINGLE * 2

    async def test_follow_the_manifest(self, device: ScriptedDevice, messages: Messages, services: Services) -> None:
        await device.register(payload=OBJECTS)
        await messages.wait(2)
        device.requests.clear()
        await upload(services, FIELDS[0], {"name": "low", "valueClass": "Double", "lwm2m": "/3303/0/5601"})
        await device.wait_asked("GET /3303/0/5601 observe")
        assert device.requests == [f"GET {LIGHT}", "PUT /3303/0/5601?pmin=60&pmax=3600", "GET /3303/0/5601 observe"]
        message_id = await device.notify(LIGHT, 9, content(TEXT, b"0"))
        await until(lambda: message_id in device.resets)
        assert len(messages.rows) == 2

    async def test_get_new_attributes(
        self, device: ScriptedDevice, messages: Messages, services: Services, lights: Device
    ) -> None:
        await device.register(payload=OBJECTS)
        await messages.wait(2)
        device.requests.clear()
        await services.device_management.configurations.change(lights.type, ConfigurationChange(pmin=120))
        await messages.wait(4)
        assert device.requests == [one.replace("pmin=60", "pmin=120") for one in SINGLE]

    async def test_that_the_device_ended_begin_again_with_the_next_update(
        self, device: ScriptedDevice, messages: Messages
    ) -> None:
        await device.register(payload=OBJECTS)
        await messages.wait(2)
        await device.notify(TEMPERATURE, None, (aiocoap.NOT_FOUND, None, b""))
        device.requests.clear()
        await device.update()
        await messages.wait(3)
        assert device.requests == [SINGLE[0], SINGLE[2]]

    async def test_of_what_is_observed_already_are_not_doubled(
        self, device: ScriptedDevice, messages: Messages, services: Services, lights: Device
    ) -> None:
        """`/3/0` is observed for the properties, so `/3/0/9` comes with it."""
        change = ConfigurationChange(device_properties_enabled=True)
        await services.device_management.configurations.change(lights.type, change)
        await upload(services, {"name": "battery", "valueClass": "Integer", "lwm2m": "/3/0/9"})
        device.replies["GET /3/0"] = content(SENML_JSON, b'[{"n":"9","v":80},{"n":"0","vs":"Acme"}]')
        await device.register(payload=b"</3/0>")
        await messages.wait(1)
        await until(lambda: len(device.requests) == 3)
        await until(lambda: services.device_management.registrations.work.session_of(lights.key))
        assert device.requests == ["PUT /3/0?pmin=60&pmax=3600", "GET /3/0 observe", "GET /3/0"]
        assert messages.data == [{"battery": 80}]

    async def test_that_are_not_offered_say_why(
        self, device: ScriptedDevice, messages: Messages, services: Services, lights: Device
    ) -> None:
        def unobserved(request: aiocoap.Message) -> aiocoap.Message:
            return device.reply(request, *content(TEXT, b"1"))

        await upload(
            services,
            *FIELDS,
            {"name": "humidity", "valueClass": "Double", "lwm2m": "/3304/0/5700"},
            {"name": "low", "valueClass": "Double", "lwm2m": "/3303/0/5601"},
        )
        device.replies[f"GET {LIGHT}"] = unobserved
        await device.register(payload=OBJECTS)
        await messages.wait(2)
        work = services.device_management.registrations.work
        await until(lambda: work.session_of(lights.key))
        session = work.session_of(lights.key)
        assert session is not None
        assert dict(session.unobserved) == {
            (3304, 0, 5700): "The device does not list /3304/0.",
            (3303, 0, 5601): "The device refuses to have /3303/0/5601 observed: 4.04.",
            (3311, 0, 5850): f"The device gives {LIGHT}, and does not observe it.",
        }
        device.requests.clear()
        await device.update()
        await until(lambda: not session.is_working)  # type: ignore[attr-defined]
        assert device.requests == []  # what was refused is asked for again with the next registration


class TestComposite:
    """Observe-Composite of LwM2M 1.1 (6.4.3.1)."""

    NOW = cbor2.dumps([{0: TEMPERATURE, 2: 21.5}, {0: LIGHT, 4: True}])

    async def _register(self, device: ScriptedDevice) -> None:
        await device.register(f"ep={KITCHEN}", "lwm2m=1.1", payload=OBJECTS)

    async def test_is_one_message_for_each_time(self, device: ScriptedDevice, messages: Messages) -> None:
        device.replies["FETCH /"] = content(SENML_CBOR, self.NOW)
        asked: list[aiocoap.Message] = []

        def answer(request: aiocoap.Message) -> aiocoap.Message:
            asked.append(request)
            return device.answered(request, content(SENML_CBOR, self.NOW))

        device.replies["FETCH / observe"] = answer
        await self._register(device)
        await messages.wait(1)
        assert device.requests == [*SINGLE[:2], "FETCH / observe"]
        assert cbor2.loads(asked[0].payload) == [{0: TEMPERATURE}, {0: LIGHT}]
        assert (asked[0].opt.content_format, asked[0].opt.accept) == (SENML_CBOR, SENML_CBOR)
        second = NOW_MS // 1000 - 60
        records = [{-3: second, 0: TEMPERATURE, 2: 22}, {0: LIGHT, 4: False}, {6: 30, 0: TEMPERATURE, 2: 23}]
        await device.notify("/", 2, content(SENML_CBOR, cbor2.dumps(records)))
        await messages.wait(3)
        assert [(row.ts, json.loads(row.data)) for row in messages.rows] == [
            (NOW_MS, {"temperature": 21.5, "light": {"on": True}}),
            (second * 1000, {"temperature": 22, "light": {"on": False}}),
            (second * 1000 + 30_000, {"temperature": 23}),
        ]

    async def test_is_read_anew_when_its_notification_has_several_blocks(
        self, device: ScriptedDevice, messages: Messages
    ) -> None:
        device.replies["FETCH /"] = content(SENML_CBOR, self.NOW)
        await self._register(device)
        await messages.wait(1)
        await device.notify("/", 2, content(SENML_CBOR, self.NOW[:16]), block2=(0, True, 0))
        await messages.wait(2)
        assert device.requests[-1] == "FETCH /"
        assert messages.data[1] == messages.data[0]

    async def test_in_the_format_that_the_device_takes(self, device: ScriptedDevice, messages: Messages) -> None:
        def json_only(request: aiocoap.Message) -> aiocoap.Message:
            if request.opt.content_format != SENML_JSON:
                return device.reply(request, aiocoap.UNSUPPORTED_CONTENT_FORMAT, None, b"")
            assert json.loads(request.payload) == [{"n": TEMPERATURE}, {"n": LIGHT}]
            return device.answered(request, content(SENML_JSON, b'[{"n":"/3303/0/5700","v":21.5}]'))

        device.replies["FETCH /"] = json_only
        await self._register(device)
        await messages.wait(1)
        assert messages.data == [{"temperature": 21.5}]

    @pytest.mark.parametrize("refusal", [aiocoap.METHOD_NOT_ALLOWED, aiocoap.NOT_IMPLEMENTED, aiocoap.BAD_REQUEST])
    async def test_a_device_that_does_not_take_it_is_observed_one_by_one(
        self, device: ScriptedDevice, messages: Messages, refusal: aiocoap.Code
    ) -> None:
        device.replies["FETCH /"] = refusal, None, b""
        await self._register(device)
        await messages.wait(2)
        assert device.requests == [*SINGLE[:2], "FETCH / observe", *SINGLE[2:]]

    async def test_a_device_that_acknowledges_it_and_never_answers_is_observed_one_by_one(
        self, device: ScriptedDevice, messages: Messages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As Wakaama does, which registers with 1.1."""
        monkeypatch.setattr(registered_device, "_COMPOSITE_SECONDS", 0.01)

        def acknowledge(request: aiocoap.Message) -> aiocoap.Message:
            answer: aiocoap.Message = device.reply(request, aiocoap.EMPTY, None, b"")
            answer.token = b""
            return answer

        device.replies["FETCH /"] = acknowledge
        await self._register(device)
        await messages.wait(2)
        assert device.requests == [*SINGLE[:2], "FETCH / observe", *SINGLE[2:]]


class TestWrites:
    """A device does not notify a server of what it has written itself (Anjay, Wakaama)."""

    @pytest.fixture
    async def session(
        self, device: ScriptedDevice, messages: Messages, services: Services, lights: Device
    ) -> ManagedSession:
        fields = (
            {"name": "temperature", "valueClass": "Double", "lwm2m": TEMPERATURE},
            {
                "name": "light",
                "children": [{"name": "on", "valueClass": "Boolean", "lwm2m": LIGHT, "settable": True}],
            },
        )
        await upload(services, *fields)
        await device.register(payload=OBJECTS)
        await messages.wait(2)
        assert device.requests[1] == f"PUT {LIGHT}?pmin=0&pmax=3600", "what is settable is told at once"
        await until(lambda: services.device_management.registrations.work.session_of(lights.key))
        session = services.device_management.registrations.work.session_of(lights.key)
        assert session is not None
        return session

    async def test_are_read_back(
        self, session: ManagedSession, device: ScriptedDevice, messages: Messages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sequence, "_NOTIFIES_SECONDS", 0)
        device.replies[f"GET {LIGHT}"] = content(TEXT, b"0")
        await session.write((3311, 0, 5850), False)
        await messages.wait(3)
        assert messages.data[2] == {"light": {"on": False}}
        await session.write((3, 0, 14), "+01:00")  # no field has it
        await wait_all_tasks_blocked()
        assert device.requests[-3:] == [f"PUT {LIGHT}", f"GET {LIGHT}", "PUT /3/0/14"]

    async def test_that_the_device_notifies_are_not(
        self, session: ManagedSession, device: ScriptedDevice, messages: Messages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sequence, "_NOTIFIES_SECONDS", 0.1)
        await session.write((3311, 0, 5850), False)
        await device.notify(LIGHT, 2, content(TEXT, b"0"))
        await messages.wait(3)
        await trio.testing.wait_all_tasks_blocked(0.2)
        assert device.requests[-1] == f"PUT {LIGHT}"
        assert messages.data[2:] == [{"light": {"on": False}}]


class TestNotifications:
    @pytest.fixture
    async def observed(self, device: ScriptedDevice, messages: Messages) -> ScriptedDevice:
        await device.register(payload=OBJECTS)
        await messages.wait(2)
        messages.rows.clear()
        return device

    async def test_are_acknowledged_when_they_are_stored(
        self, observed: ScriptedDevice, messages: Messages, services: Services, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, gate = services.messages.ingest.wait_committed, trio.Event()

        async def slow() -> None:
            await gate.wait()
            await real()

        monkeypatch.setattr(services.messages.ingest, "wait_committed", slow)
        message_id = await observed.notify(TEMPERATURE, 2, content(TEXT, b"22"))
        await messages.wait(1)
        await wait_all_tasks_blocked()
        assert observed.acknowledged == []
        gate.set()
        await until(lambda: observed.acknowledged == [message_id])

    async def test_that_come_again_while_they_are_stored_are_one(
        self, observed: ScriptedDevice, messages: Messages, transport: MemoryTransport
    ) -> None:
        message = observed.message(aiocoap.CONTENT, payload=b"22")
        message.token, message.opt.observe = observed.observed[TEMPERATURE], 2
        for _ in range(3):
            transport.send_bytes(message.encode())
        await until(lambda: observed.acknowledged)
        assert (messages.data, observed.acknowledged) == ([{"temperature": 22}], [message.mid])
        transport.send_bytes(message.encode())  # the acknowledgement was lost
        await until(lambda: observed.acknowledged == [message.mid] * 2)
        assert messages.data == [{"temperature": 22}]

    async def test_that_could_not_be_stored_are_not_acknowledged_and_are_taken_again(
        self,
        observed: ScriptedDevice,
        messages: Messages,
        services: Services,
        transport: MemoryTransport,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        tried = []

        async def full(*_: object, **__: object) -> None:
            tried.append(1)
            raise StoreError("the disk is full")

        message = observed.message(aiocoap.CONTENT, payload=b"22")
        message.token, message.opt.observe = observed.observed[TEMPERATURE], 2
        with monkeypatch.context() as patch:
            patch.setattr(services.device_management.registrations, "receive_values", full)
            transport.send_bytes(message.encode())
            await until(lambda: tried)
            await wait_all_tasks_blocked()
        assert (messages.data, observed.acknowledged) == ([], [])
        transport.send_bytes(message.encode())
        await messages.wait(1)
        await until(lambda: observed.acknowledged == [message.mid])
        assert messages.data == [{"temperature": 22}]

    async def test_with_a_value_of_another_type_are_failed_messages(
        self, observed: ScriptedDevice, messages: Messages, services: Services, lights: Device
    ) -> None:
        await observed.notify(TEMPERATURE, 2, content(TEXT, b"warm"))
        await observed.notify(TEMPERATURE, 3, content(TEXT, b"22"))
        await messages.wait(1)
        (found,), total = await services.messages.history.failed(lights, offset=0, limit=9)
        assert (total, found[1].payload) == (1, "warm")
        assert found[1].reason == "A notification has 'warm' at /3303/0/5700, which should be a number."
        assert messages.data == [{"temperature": 22}]

    async def test_that_do_not_fit_the_field_are_failed_messages(
        self, device: ScriptedDevice, services: Services, lights: Device
    ) -> None:
        await upload(services, {"name": "level", "valueClass": "Integer", "lwm2m": "/4242/0/1"})
        device.replies["GET /4242/0/1"] = content(TEXT, b"high")
        await device.register(payload=b"</4242/0>")
        await device.wait_asked("GET /4242/0/1 observe")

        await until(lambda: services.device_management.registrations.work.session_of(lights.key))
        (found,), _ = await services.messages.history.failed(lights, offset=0, limit=9)
        assert (found[1].payload, found[1].reason) == ('{"level":"high"}', "nothing remained after normalization")

    async def test_that_come_too_fast_are_refused_with_the_reason(
        self,
        observed: ScriptedDevice,
        messages: Messages,
        services: Services,
        lights: Device,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Reference 21.1: 100 in a minute, as on CoAP."""
        monkeypatch.setattr(services.limits.meters, "_rates", rates_of(Limits()))
        for number in range(2, 122):
            await observed.notify(TEMPERATURE, number, content(TEXT, b"22"), type_=aiocoap.NON)
        await messages.wait(100)
        await until(lambda: services.messages.ingest.refused.of(lights))
        await wait_all_tasks_blocked()
        assert len(messages.rows) == 100
        refused = services.messages.ingest.refused.of(lights)[0]
        assert (refused.status, refused.text) == (429, "MINUTE rate limit exceeded")
        answer = await observed.send(SENML_JSON, b'[{"n":"/3303/0/5700","v":1}]')
        assert (str(answer.code), answer.payload) == ("4.29 Too Many Requests", b"MINUTE rate limit exceeded")

    async def test_of_a_send_are_one_message_for_each_time(self, observed: ScriptedDevice, messages: Messages) -> None:
        second = NOW_MS // 1000
        records = [
            {"bn": "/", "bt": second - 20, "n": "3303/0/5700", "v": 20},
            {"n": "3311/0/5850", "vb": False},
            {"n": "3303/0/5700", "t": 10, "v": 21},
        ]
        assert (await observed.send(SENML_JSON, json.dumps(records).encode())).code == aiocoap.CHANGED
        assert [(row.ts, json.loads(row.data)) for row in messages.rows] == [
            ((second - 20) * 1000, {"temperature": 20, "light": {"on": False}}),
            ((second - 10) * 1000, {"temperature": 21}),
        ]


async def test_a_name_beside_a_path_means_nothing(
    device: ScriptedDevice, messages: Messages, services: Services, lights: Device
) -> None:
    """The property `temperature.sensorValue` would be this field's by its name (reference 18.3)."""
    change = ConfigurationChange(device_properties_enabled=True)
    await services.device_management.configurations.change(lights.type, change)
    inner = {"name": "sensorValue", "valueClass": "Double", "lwm2m": "/3304/0/5700"}
    await upload(services, {"name": "temperature", "children": [inner]})
    device.replies["GET /3303/0"] = content(SENML_JSON, b'[{"n":"5700","v":20}]')
    device.replies["GET /3304/0/5700"] = content(TEXT, b"55")
    await device.register(payload=b"</3303/0>,</3304/0>")
    await messages.wait(1)
    assert messages.data == [{"temperature": {"sensorValue": 55}}]


async def test_a_manifest_that_does_not_fit_the_models_is_refused(services: Services, lights: Device) -> None:
    with pytest.raises(ValidationFailed) as refused:
        await upload(services, {"name": "t", "valueClass": "Boolean", "lwm2m": TEMPERATURE})
    text = "/3303/0/5700 is Float, so valueClass must be one of Double, Float, Integer, Long, String"
    (finding,) = refused.value.findings
    assert (finding.field, finding.messages) == ("fields.0.lwm2m", (f"Invalid value: {text}",))
    assert lights.type.latest.version == 2  # nothing was stored
