"""Devices of an import: made whole or not at all, and claimed once by whoever has the label (reference 6.6)."""

from typing import Any, Final

import pytest
import trio

from broker.devices.labels import ImportedDevice, LabelOver, NoSuchLabel
from broker.errors import Conflict, TooManyAttempts, ValidationFailed
from broker.facts import DeviceHandedOver, DeviceTakenOver
from broker.services import Services
from config.limits import IMPORT_DEVICES_MAX, LABEL_MISSES
from storage.records import UserRecord
from tests.factories import ADA, BOB, HALL_TOKEN, KITCHEN, LIGHT_TYPE, World
from tests.fakes import FakeClock
from tests.rows import each_row

FILE: Final = f'name,type,vdid,token\nLamp <1>,{LIGHT_TYPE},a-1,{"ab" * 16}\n"Lamp, 2",example.smart_light,,\n'


@pytest.fixture
async def ada(services: Services, world: World) -> UserRecord:
    assert world.kitchen
    return await services.accounts.users.find(ADA)


@pytest.fixture
async def bob(services: Services, ada: UserRecord) -> UserRecord:
    assert ada
    return await services.accounts.users.find(BOB)


async def imported(services: Services, owner: UserRecord, text: str = FILE) -> list[ImportedDevice]:
    return await services.devices.labels.import_devices(text, owner)


async def test_an_imported_device_is_the_importers_until_it_is_claimed(
    services: Services, ada: UserRecord, bob: UserRecord
) -> None:
    facts: list[Any] = []
    for kind in (DeviceHandedOver, DeviceTakenOver):
        services.core.router.subscribe(kind, facts.append)
    first, second = await imported(services, ada, FILE.replace("Lamp <1>", "Lamp 1"))
    assert (first.name, second.name, first.token, first.type) == ("Lamp 1", "Lamp, 2", "ab" * 16, "example.smart_light")
    device, caller = await services.devices.registry.by_token(first.token)
    assert (device.id, device.owner, device.record.vdid) == (first.id, ada.key, "a-1")
    assert caller.device == device.key
    typed = f" {first.code[:4].lower()}-{first.code[4:]}"
    shown = await services.devices.labels.find(typed, bob)
    assert (shown.id, shown.name, shown.is_own) == (first.id, "Lamp 1", False)
    assert device.owner == ada.key, "to look changes nothing"
    assert not (await services.devices.labels.claim(typed, bob)).is_own
    assert device.owner == bob.key
    assert [type(fact).__name__ for fact in facts] == ["DeviceHandedOver", "DeviceTakenOver"]
    assert (await services.devices.registry.by_token(first.token))[0] is device, "the token in the device stays"
    assert (await services.devices.labels.find(first.code, bob)).is_own
    with pytest.raises(LabelOver, match=r"This label was used on 2025-10-09: its device has an owner"):
        await services.devices.labels.claim(first.code, ada)
    assert device.owner == bob.key
    assert (await services.devices.labels.claim(second.code, ada)).id == second.id, "the importer may use one, too"


@pytest.mark.both_engines
async def test_a_lost_label_is_made_again_with_a_new_code(services: Services, ada: UserRecord, bob: UserRecord) -> None:
    labels, registry = services.devices.labels, services.devices.registry
    made = await imported(services, ada, FILE.replace("Lamp <1>", "Lamp 1"))
    devices = [await registry.find(one.id) for one in made]
    again = await labels.renew(devices)
    assert [(one.id, one.name, one.token) for one in again] == [(one.id, one.name, "") for one in made]
    with pytest.raises(LabelOver, match=r"A new label was made for its device on 2025-10-09"):
        await labels.claim(made[0].code, bob)
    assert (await registry.by_token(made[0].token))[0] is devices[0], "the token in the device stays"
    assert (await labels.claim(again[0].code, bob)).id == made[0].id
    # Of a device with another owner there is none, and then none of any: the second one's label is as it was.
    with pytest.raises(Conflict, match=made[0].id):
        await labels.renew([devices[1], devices[0]])
    with pytest.raises(Conflict, match=KITCHEN):
        await labels.renew([await registry.find(KITCHEN)])
    assert (await labels.claim(again[1].code, bob)).id == made[1].id


async def test_of_two_who_claim_at_once_one_gets_the_device(
    services: Services, ada: UserRecord, bob: UserRecord
) -> None:
    (one,) = await imported(services, ada, f"name,type\nLamp,{LIGHT_TYPE}\n")
    outcomes: list[str] = []

    async def claim(user: UserRecord) -> None:
        try:
            await services.devices.labels.claim(one.code, user)
            outcomes.append("claimed")
        except LabelOver:
            outcomes.append("refused")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(claim, ada)
        nursery.start_soon(claim, bob)
    assert sorted(outcomes) == ["claimed", "refused"]


@pytest.mark.both_engines
async def test_labels_of_deleted_and_given_devices_say_so(services: Services, ada: UserRecord, bob: UserRecord) -> None:
    first, second = await imported(services, ada, f"name,type\nA,{LIGHT_TYPE}\nB,{LIGHT_TYPE}\n")
    await services.devices.inventory.delete(await services.devices.registry.find(first.id))
    with pytest.raises(LabelOver, match="The device of this label was deleted"):
        await services.devices.labels.claim(first.code, bob)
    device = await services.devices.registry.find(second.id)
    offer = await services.devices.transfers.offer(device, email=bob.email)
    await services.devices.transfers.answer(device, offer, bob.key, accept=True)
    with pytest.raises(LabelOver, match="given to somebody in another way"):
        await services.devices.labels.claim(second.code, ada)


@pytest.mark.both_engines
async def test_guessing_is_bounded(services: Services, ada: UserRecord, bob: UserRecord, fake_clock: FakeClock) -> None:
    (one,) = await imported(services, ada, f"name,type\nLamp,{LIGHT_TYPE}\n")
    for number in range(LABEL_MISSES):
        with pytest.raises(NoSuchLabel):
            await services.devices.labels.find(f"WRONG{number}", bob)
    for call in (services.devices.labels.find, services.devices.labels.claim):
        with pytest.raises(TooManyAttempts):
            await call(one.code, bob)
    assert (await services.devices.labels.find(one.code, ada)).id == one.id
    fake_clock.advance(900_001)
    assert (await services.devices.labels.claim(one.code, bob)).id == one.id


@each_row(
    ("text", "field", "reason"),
    [
        ("", "line 1", "the columns are name, type, id, vdid, token; name and type are required"),
        ("name\nx\n", "line 1", "the columns are name, type, id, vdid, token; name and type are required"),
        ("name,type,colour\n", "line 1", "the columns are name, type, id, vdid, token; name and type are required"),
        ("name,type\n", "line 2", "there is no device"),
        (f"name,type\nA,{LIGHT_TYPE}\nB\n", "line 3", "1 values for 2 columns"),
        (f"name,type\nA,{LIGHT_TYPE}\n\n,{LIGHT_TYPE}\n", "line 4", "name: required"),
        (f"name,type\nA,{LIGHT_TYPE}\nB,nothing\n", "line 3", "type: there is no device type 'nothing'"),
        (f"name,type\nA,{LIGHT_TYPE}\n<b>,{LIGHT_TYPE}\n", "line 3", None),
        (f"name,type,id\nA,{LIGHT_TYPE},\nB,{LIGHT_TYPE},{KITCHEN}\n", "line 3", "id: another device has it"),
        (f"name,type,token\nA,{LIGHT_TYPE},\nB,{LIGHT_TYPE},{HALL_TOKEN}\n", "line 3", "token: it is in use"),
        (f"name,type,token\nA,{LIGHT_TYPE},\nB,{LIGHT_TYPE},secret\n", "line 3", None),
        (f"name,type,vdid\nA,{LIGHT_TYPE},v\nB,{LIGHT_TYPE},v\n", "line 3", "vdid: the same as in line 2"),
        (f'name,type\n"A,{LIGHT_TYPE}\n', "line 2", None),
        ("name,type\n" + f"A,{LIGHT_TYPE}\n" * (IMPORT_DEVICES_MAX + 1), f"line {IMPORT_DEVICES_MAX + 2}", None),
    ],
)
async def test_of_a_file_with_a_wrong_line_nothing_is_taken(
    services: Services, ada: UserRecord, text: str, field: str, reason: str | None
) -> None:
    before = await services.core.database.read(lambda tx: tx.devices.names_of_owner(ada.key))
    with pytest.raises(ValidationFailed) as refused:
        await imported(services, ada, text)
    finding = refused.value.findings[0]
    assert finding.field == field
    assert reason is None or finding.messages == (reason,)
    assert await services.core.database.read(lambda tx: tx.devices.names_of_owner(ada.key)) == before
