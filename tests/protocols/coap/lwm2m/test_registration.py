"""The registration interface (reference 18.2): int-101 to int-109."""

from unittest.mock import AsyncMock

import aiocoap
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from broker.device_management.sessions import latest
from broker.services import Services
from protocols.coap.lwm2m.datagrams import Lwm2mEndpoint
from protocols.coap.lwm2m.links import MAX_LINKS
from protocols.coap.lwm2m.server import Lwm2mServer
from storage.sql import StoreError
from tests.factories import HALL, KITCHEN, KITCHEN_TOKEN, World
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.lwm2m.conftest import Management
from tests.protocols.coap.lwm2m.device import MemoryTransport, ScriptedDevice
from tests.protocols.coap.peers import disable_kitchen, revoke_kitchen_token
from tests.rows import each_row


class TestRegistration:
    async def test_answers_with_a_location_and_no_body(
        self, device: ScriptedDevice, management: Management, services: Services, world: World
    ) -> None:
        """int-101."""
        answer = await device.register()
        assert answer.code == aiocoap.CREATED
        assert answer.opt.location_path[0] == "rd"
        assert 1 <= int(answer.opt.location_path[1]) <= 65534
        assert answer.payload == b""
        session = await management.session()
        assert session.device.id == KITCHEN
        assert session.offers == {(1,), (1, 0), (3,), (3, 0), (5,), (5, 0)}
        presence = await services.devices.presence.of(world.kitchen)
        assert (presence.availability, presence.protocol) == ("online", "LWM2M")

    async def test_the_first_is_durable_before_it_is_answered(
        self, device: ScriptedDevice, management: Management, services: Services, world: World
    ) -> None:
        """Issue 44, 1. The device's token may end during the wait."""
        management.may_admit = trio.Event()
        answers: list[aiocoap.Message] = []

        async def register() -> None:
            answers.append(await device.register())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(register)
            await wait_all_tasks_blocked()
            assert answers == []
            await revoke_kitchen_token(services, world)
            management.may_admit.set()
        assert answers[0].code == aiocoap.UNAUTHORIZED
        assert management.sessions == []

    async def test_a_later_one_needs_no_store(self, device: ScriptedDevice, management: Management) -> None:
        await device.register()
        await device.register()
        assert management.admitted == [KITCHEN]

    async def test_that_cannot_be_stored_is_refused(
        self, device: ScriptedDevice, management: Management, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(management, "admit", AsyncMock(side_effect=StoreError("the disk is full")))
        assert (await device.register()).code == aiocoap.SERVICE_UNAVAILABLE
        monkeypatch.undo()
        assert (await device.register()).code == aiocoap.CREATED

    @each_row(
        "queries",
        [
            (f"ep={KITCHEN}",),
            ("b=UQ", "lt=20", "lwm2m=1.1", f"ep={KITCHEN}"),
            ("lwm2m=1.2", f"ep={KITCHEN}", "b=T"),
            (f"ep={KITCHEN}", "lt=60", "b=U", "sms=0123", "Q", "token=not%20looked%20at"),
            ("lt=60",),
            (f"ep={KITCHEN}&lt=60&lwm2m=1.0&b=U",),
        ],
    )
    async def test_takes_any_parameters_in_any_order(self, device: ScriptedDevice, queries: tuple[str, ...]) -> None:
        assert (await device.register(*queries)).code == aiocoap.CREATED

    @pytest.mark.parametrize(
        ("payload", "format_", "offers"),
        [
            (b'</>;rt="oma.lwm2m";ct=11543,</3/0>,</5/0>', 40, {(3,), (3, 0), (5,), (5, 0)}),
            (b'</lwm2m>;rt="oma.lwm2m", </lwm2m/3/0>,</lwm2m/5>', 40, {(3,), (3, 0), (5,)}),
            (b"", None, {(3,), (3, 0), (5,), (5, 0)}),
            (b"</3/0>", None, {(3,), (3, 0)}),
            (
                b"<3/0>,</3303/1>;ver=1.1,</65535/65535>",
                40,
                {(3,), (3, 0), (3303,), (3303, 1), (65535,), (65535, 65535)},
            ),
            (b'</3>;ver="1.1",</3/0>,</.well-known/core>;rt="a,b"', 40, {(3,), (3, 0)}),
        ],
        ids=[
            "root link",
            "root path",
            "empty body",
            "no content-format",
            "unknown objects",
            "versions and other links",
        ],
    )
    async def test_reads_every_form_of_the_object_list(
        self,
        device: ScriptedDevice,
        management: Management,
        payload: bytes,
        format_: int | None,
        offers: set[tuple[int, ...]],
    ) -> None:
        await device.register(payload=payload, format_=format_)
        assert (await management.session()).offers == offers

    @each_row("observe", [0, 1])
    async def test_ignores_the_option_observe(self, device: ScriptedDevice, observe: int) -> None:
        answer = await device.register(observe=observe)
        assert (answer.code, answer.opt.observe) == (aiocoap.CREATED, None)

    async def test_takes_the_longest_list_in_blocks(self, device: ScriptedDevice, management: Management) -> None:
        body = b",".join(b"</3303/%d>" % number for number in range(MAX_LINKS))
        answer = await device.ask_in_blocks("rd", body, f"ep={KITCHEN}")
        assert (answer.code, answer.opt.block1.block_number) == (aiocoap.CREATED, len(body) // 1024)
        assert (3303, MAX_LINKS - 1) in (await management.session()).offers

    @pytest.mark.parametrize(
        ("queries", "payload", "format_", "code"),
        [
            ((f"ep={HALL}",), b"", None, aiocoap.FORBIDDEN),
            ((f"ep={KITCHEN}", "lt=soon"), b"", None, aiocoap.BAD_REQUEST),
            ((f"ep={KITCHEN}",), b"no links", 40, aiocoap.BAD_REQUEST),
            ((f"ep={KITCHEN}",), b"\xff\xfe", 40, aiocoap.BAD_REQUEST),
            ((f"ep={KITCHEN}",), b"{}", 50, aiocoap.UNSUPPORTED_CONTENT_FORMAT),
            ((f"ep={KITCHEN}",), b"</3>," * 700, 40, aiocoap.BAD_REQUEST),
            (tuple(f"a{n}=1" for n in range(20)), b"", None, aiocoap.BAD_REQUEST),
        ],
    )
    async def test_is_refused_for_what_cannot_be_read(
        self,
        device: ScriptedDevice,
        server: Lwm2mServer,
        queries: tuple[str, ...],
        payload: bytes,
        format_: int | None,
        code: aiocoap.Code,
    ) -> None:
        assert (await device.register(*queries, payload=payload, format_=format_)).code == code
        assert (server.statistics().registered, server.statistics().refused) == (0, 1)

    async def test_is_refused_without_a_proof(self, device: ScriptedDevice) -> None:
        transport = device.transport
        assert isinstance(transport, MemoryTransport)
        transport.session.pre_shared_key = None
        assert (await device.register()).code == aiocoap.UNAUTHORIZED

    async def test_is_refused_when_the_token_is_revoked_meanwhile(
        self, device: ScriptedDevice, services: Services, world: World
    ) -> None:
        await revoke_kitchen_token(services, world)
        with capture_logs() as logs:
            assert (await device.register()).code == aiocoap.UNAUTHORIZED
        assert [(log["event"], log["peer"]) for log in logs] == [("lwm2m_credentials_refused", "192.0.2.1")]

    async def test_of_a_disabled_device_is_refused(
        self, device: ScriptedDevice, services: Services, world: World
    ) -> None:
        await disable_kitchen(services, world)
        assert (await device.register()).code == aiocoap.FORBIDDEN

    async def test_again_replaces_the_former_one(
        self, device: ScriptedDevice, management: Management, services: Services, world: World
    ) -> None:
        """A device that lost its location registers again instead of updating; it never goes offline."""
        await device.register()
        former = await management.session()
        location = device.location
        await device.register()
        session = await management.session(2)
        assert management.over == [former]
        assert former.is_over
        assert not session.is_over
        assert location != device.location
        device.location = location
        assert (await device.update()).code == aiocoap.NOT_FOUND
        assert services.routing.connections.is_online(world.kitchen)

    async def test_does_not_count_as_the_one_connection(
        self, device: ScriptedDevice, services: Services, world: World
    ) -> None:
        """Reference 16.1; and it takes no Actions."""
        light = await services.devices.registry.get(world.kitchen)
        closed: list[object] = []
        with services.routing.connections.connect(
            light, protocol="MQTT", token=b"", exclusive=True, deliver=lambda _: True, close=closed.append
        ):
            await device.register()
            services.messages.ingest.submit_action(light, light, b'{"actions":[{"name":"setOn"}]}')
            await services.messages.ingest.wait_committed()
            statistics = services.routing.connections.statistics()
            assert (closed, statistics.links) == ([], 2)
            assert (statistics.actions_delivered, statistics.actions_dropped) == (1, 0)

    @each_row("path", [("rd", "x"), ("bs",), ("rd", "1", "2"), (".well-known", "core")])
    async def test_other_paths_are_not_found(self, device: ScriptedDevice, path: tuple[str, ...]) -> None:
        message = device.message(aiocoap.POST)
        message.opt.uri_path = path
        assert (await device.ask(message)).code == aiocoap.NOT_FOUND


class TestUpdate:
    async def test_begins_the_lifetime_anew(self, device: ScriptedDevice, server: Lwm2mServer, time: Time) -> None:
        """int-102: at half of the lifetime, and once more after that."""
        await device.register(f"ep={KITCHEN}", "lt=20")
        for _ in range(3):
            time.now += 15
            assert (await device.update()).code == aiocoap.CHANGED
            server.expire(time.now)
        assert server.statistics().registered == 1

    async def test_changes_lifetime_binding_and_objects(
        self, device: ScriptedDevice, management: Management, server: Lwm2mServer, time: Time
    ) -> None:
        """int-102, int-107."""
        await device.register()
        await management.session()
        await device.update("lt=60", "b=UQ", payload=b"</3/0>,</3303/0>")
        session = await management.session(2)
        assert session.offers == {(3,), (3, 0), (3303,), (3303, 0)}
        time.now += 65
        server.expire(time.now)
        assert not session.is_over
        assert server.statistics().asleep == 0
        time.now += 30
        assert server.statistics().asleep == 1

    async def test_may_be_a_put(self, device: ScriptedDevice) -> None:
        """Drafts of LwM2M 1.0 had PUT."""
        await device.register()
        assert (await device.update(code=aiocoap.PUT)).code == aiocoap.CHANGED

    async def test_of_another_devices_location_is_not_found(
        self, device: ScriptedDevice, lwm2m: Lwm2mEndpoint, management: Management
    ) -> None:
        await device.register()
        transport = MemoryTransport(lwm2m, HALL, "22" * 16, address=("192.0.2.2", 1))
        other = ScriptedDevice(transport, HALL)
        other.location = device.location
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.run)
            assert (await other.update()).code == aiocoap.NOT_FOUND
            other.location = (*device.location[:1], "99999")
            assert (await other.update()).code == aiocoap.NOT_FOUND
            nursery.cancel_scope.cancel()
        assert not management.over

    async def test_from_a_new_address_takes_over(
        self, device: ScriptedDevice, lwm2m: Lwm2mEndpoint, management: Management
    ) -> None:
        await device.register()
        session = await management.session()
        again = ScriptedDevice(MemoryTransport(lwm2m, KITCHEN, KITCHEN_TOKEN, address=("192.0.2.9", 9)), KITCHEN)
        again.location = device.location
        again.replies["GET /3/0/9"] = aiocoap.CONTENT, 0, b"80"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(again.run)
            assert (await again.update()).code == aiocoap.CHANGED
            await device.has_ended.wait()  # its session is closed
            assert latest(await session.read((3, 0, 9))) == {(3, 0, 9): 80}
            nursery.cancel_scope.cancel()
        assert not session.is_over


class TestTheEnd:
    async def test_by_the_device(
        self, device: ScriptedDevice, management: Management, services: Services, world: World
    ) -> None:
        """int-103."""
        await device.register()
        session = await management.session()
        message = device.message(aiocoap.DELETE)
        message.opt.uri_path = device.location
        assert (await device.ask(message)).code == aiocoap.DELETED
        assert management.over == [session]
        assert (await services.devices.presence.of(world.kitchen)).availability == "offline"
        assert (await device.update()).code == aiocoap.NOT_FOUND

    async def test_after_the_lifetime_and_ten_seconds(
        self, device: ScriptedDevice, management: Management, server: Lwm2mServer, time: Time
    ) -> None:
        await device.register(f"ep={KITCHEN}", "lt=20")
        session = await management.session()
        server.expire(time.now + 29.9)
        assert not session.is_over
        server.expire(time.now + 30)
        assert session.is_over
        assert server.statistics().expired == 1

    async def test_the_default_lifetime_is_a_day(
        self, device: ScriptedDevice, management: Management, server: Lwm2mServer, time: Time
    ) -> None:
        await device.register(f"ep={KITCHEN}")
        session = await management.session()
        server.expire(time.now + 86_400)
        assert not session.is_over
        server.expire(time.now + 86_410)
        assert session.is_over

    async def test_when_the_device_is_disabled_or_its_token_revoked(
        self, device: ScriptedDevice, management: Management, services: Services, world: World
    ) -> None:
        await device.register()
        session = await management.session()
        await revoke_kitchen_token(services, world)
        await device.has_ended.wait()
        assert session.is_over

    async def test_when_the_daemon_stops(
        self, device: ScriptedDevice, management: Management, services: Services
    ) -> None:
        await device.register()
        session = await management.session()
        services.routing.connections.close_all()
        await wait_all_tasks_blocked()
        assert session.is_over
