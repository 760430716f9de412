"""Any sequence of what members do with a trial gives the members, devices and permissions of a simple model."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.accounts.permissions import READ_AND_WRITE
from broker.accounts.tokens import Caller
from broker.devices.inventory import NewDevice
from broker.devices.registry import Device
from broker.errors import Conflict, DeviceTypeNotFound, DomainError, NotFound, PermissionDenied, Unauthorized
from broker.ids import new_id
from broker.mail.kinds import TrialInvitation
from broker.secrets import token_hash
from broker.services import Services
from broker.trials.invitations import NewInvitation
from broker.trials.roles import InvitationStatus, TrialRole
from broker.trials.trials import NewTrial
from config.rates import Rate
from config.settings import Settings
from storage.records import TokenRecord, UserRecord
from tests.builders import ServicesOpener
from tests.factories import ADA_TOKEN, LIGHT_TYPE, NOW_MS, World, build_world
from tests.fakes import FakeClock
from tests.properties import examples
from tests.stores import MigratedEngine
from tests.trial_world import add_people, user_of
from tests.type_world import add_types

pytestmark = pytest.mark.slow


HOUR_MS: Final = 3_600_000
ADMINISTRATOR, PARTICIPANT = TrialRole.ADMINISTRATOR, TrialRole.PARTICIPANT
USERS: Final = ("ada", "bob", "ina")
TYPES: Final = (LIGHT_TYPE, "dt-sensor")

_user, _type = st.sampled_from(USERS), st.sampled_from(TYPES)
_role, _place = st.sampled_from((PARTICIPANT, PARTICIPANT, ADMINISTRATOR)), st.integers(0, 3)
STEP: Final = st.one_of(
    st.tuples(st.just("invite"), _user, _role),
    st.tuples(st.just("accept"), _place, _user),
    st.tuples(st.just("accept own"), _place),
    st.tuples(st.just("revoke"), _place),
    st.tuples(st.just("take back"), _place),
    st.tuples(st.just("remove"), _user, _role),
    st.tuples(st.just("connect"), _user, _user, _type),
    st.tuples(st.just("disconnect"), _user, _type),
    st.tuples(st.just("add type"), _type),
    st.tuples(st.just("remove type"), _type),
    st.tuples(st.just("revoke application"), _user),
    st.tuples(st.just("renew")),
    st.tuples(st.just("wait")),
    st.tuples(st.just("stop")),
    st.tuples(st.just("delete")),
)
#: Most histories begin with participants: from an empty trial, few steps lead anywhere.
BEGUN: Final = [
    ("add type", LIGHT_TYPE),
    ("invite", "bob", PARTICIPANT),
    ("accept own", 0),
    ("connect", "bob", "bob", LIGHT_TYPE),
]


@dataclass
class Invited:
    user: str
    role: TrialRole
    sent_ms: int
    state: str = "sent"


@dataclass
class Model:
    """Expected state of the trial. A device is named by its owner and its type; each owner has one of each."""

    now_ms: int = NOW_MS
    there: bool = True
    stopped: bool = False
    members: dict[TrialRole, list[str]] = field(default_factory=lambda: {ADMINISTRATOR: ["ada"], PARTICIPANT: []})
    granting: dict[str, set[str]] = field(default_factory=dict)
    types: list[str] = field(default_factory=list)
    connected: list[tuple[str, str]] = field(default_factory=list)
    invited: list[Invited] = field(default_factory=list)

    def state(self, one: Invited) -> str:
        return "expired" if one.state == "sent" and self.now_ms >= one.sent_ms + 24 * HOUR_MS else one.state

    def take(self, step: tuple[Any, ...]) -> type[DomainError] | None:
        """The expected refusal; without one, the model takes the step."""
        name, *rest = step
        if name == "wait":
            self.now_ms += 13 * HOUR_MS
            return None
        if not self.there:
            return NotFound
        refusal: type[DomainError] | None = getattr(self, name.replace(" ", "_"))(*rest)
        return refusal

    def invite(self, user: str, role: TrialRole) -> type[DomainError] | None:
        is_open = any((one.user, one.role, self.state(one)) == (user, role, "sent") for one in self.invited)
        if self.stopped or is_open or user in self.members[role]:
            return Conflict
        self.invited.append(Invited(user, role, self.now_ms))
        return None

    def accept_own(self, place: int) -> type[DomainError] | None:
        return self.accept(place, self.invited[place].user) if place < len(self.invited) else NotFound

    def accept(self, place: int, user: str) -> type[DomainError] | None:
        if place >= len(self.invited) or self.invited[place].state == "gone":
            return NotFound
        one = self.invited[place]
        if one.user != user:
            return PermissionDenied
        if self.state(one) != "sent":
            return Conflict
        one.state = "accepted"
        if user not in self.members[one.role]:
            self.members[one.role].append(user)
            if one.role is PARTICIPANT:
                self.granting[user] = set(self.types)
        return None

    def _end(self, place: int, state: str) -> type[DomainError] | None:
        if place >= len(self.invited) or self.invited[place].state == "gone":
            return NotFound
        if self.state(self.invited[place]) != "sent":
            return Conflict
        self.invited[place].state = state
        return None

    def revoke(self, place: int) -> type[DomainError] | None:
        return self._end(place, "revoked")

    def take_back(self, place: int) -> type[DomainError] | None:
        return self._end(place, "gone")

    def remove(self, user: str, role: TrialRole) -> type[DomainError] | None:
        if user not in self.members[role]:
            return NotFound
        if role is ADMINISTRATOR and len(self.members[role]) == 1:
            return Conflict
        self.members[role].remove(user)
        if role is PARTICIPANT:
            self.granting.pop(user, None)
            self.connected = [one for one in self.connected if one[0] != user]
        return None

    def connect(self, user: str, owner: str, type_: str) -> type[DomainError] | None:
        if owner != user or type_ not in self.types:
            return PermissionDenied
        if self.stopped:
            return Conflict
        if user not in self.members[PARTICIPANT]:
            return NotFound
        if (owner, type_) in self.connected:
            return Conflict
        self.connected.append((owner, type_))
        return None

    def disconnect(self, user: str, type_: str) -> type[DomainError] | None:
        if (user, type_) not in self.connected:
            return NotFound
        self.connected.remove((user, type_))
        return None

    def add_type(self, type_: str) -> type[DomainError] | None:
        if self.stopped or type_ in self.types:
            return Conflict
        self.types.append(type_)
        for granted in self.granting.values():
            granted.add(type_)
        return None

    def remove_type(self, type_: str) -> type[DomainError] | None:
        if self.stopped:
            return Conflict
        if type_ not in self.types:
            return DeviceTypeNotFound
        self.types.remove(type_)
        self.connected = [one for one in self.connected if one[1] != type_]
        for granted in self.granting.values():
            granted.discard(type_)
        return None

    def revoke_application(self, user: str) -> None:
        self.granting.pop(user, None)

    def renew(self) -> type[DomainError] | None:
        return Conflict if self.stopped else None

    def stop(self) -> type[DomainError] | None:
        if self.stopped:
            return Conflict
        self.stopped = True
        self.connected = [one for one in self.connected if one[1] in self.granting.get(one[0], ())]
        self.granting.clear()
        for one in self.invited:
            if self.state(one) == "sent":
                one.state = "gone"
        return None

    def delete(self) -> None:
        self.there = False
        self.granting.clear()

    @property
    def readable(self) -> set[tuple[str, str]]:
        return {(user, type_) for user, types in self.granting.items() for type_ in types}


class History:
    """A trial in the broker, beside the model."""

    def __init__(self, services: Services, clock: FakeClock) -> None:
        self.services = services
        self.room = services.trials
        self.clock = clock
        self.model = Model()
        self.users: dict[str, UserRecord] = {}
        self.devices: dict[tuple[str, str], Device] = {}
        self.ids: list[str] = []  # of the invitations
        self.tokens: list[str] = []  # of the trial's application; the last one may be valid

    async def begin(self, world: World) -> None:
        await add_people(self.services, world)
        await add_types(self.services.core.database, world)
        ina = await self.services.accounts.users.find("1a" * 16)
        self.users = {
            "ada": await user_of(self.services, world.ada),
            "bob": await user_of(self.services, world.bob),
            "ina": ina,
        }
        for name, user in self.users.items():
            for type_id in TYPES:
                type_ = await self.services.device_types.catalog.find(type_id)
                self.devices[name, type_id] = await self.services.devices.inventory.create(
                    NewDevice(owner=user.key, type=type_)
                )
        self.trial = await self.room.trials.create(await self.ada(), NewTrial("Trial", None))
        await self.new_token()

    async def ada(self) -> Caller:
        return await self.services.accounts.tokens.caller(ADA_TOKEN)

    async def new_token(self) -> None:
        token, trial = new_id(), self.trial.record
        record = TokenRecord(token_hash(token), trial.application, None, NOW_MS, NOW_MS * 2)
        await self.services.core.database.write(lambda tx: tx.accounts.put_token(record))
        self.tokens.append(token)
        self.reach = await self.services.accounts.permissions.reach(await self.services.accounts.tokens.caller(token))

    async def take(self, step: tuple[Any, ...]) -> None:
        name, *rest = step
        trial, room = self.trial.record, self.room
        match name:
            case "invite":
                new = NewInvitation(self.users[rest[0]].email, rest[1])
                self.ids.append((await room.invitations.invite(self.users["ada"], trial, new)).id)
            case "accept" | "accept own":
                await self.accept(*rest)
            case "revoke":
                await room.invitations.revoke(trial, self.invitation(rest[0]))
            case "take back":
                await room.invitations.remove(trial, self.invitation(rest[0]))
            case "remove":
                await room.members.remove(trial, self.users[rest[0]], rest[1])
            case "connect":
                await room.members.connect(trial, self.users[rest[0]].key, self.devices[rest[1], rest[2]])
            case "disconnect":
                await room.members.disconnect(trial, self.users[rest[0]].key, self.devices[rest[0], rest[1]])
            case "add type":
                await room.device_types.add(await self.ada(), trial, rest[0])
            case "remove type":
                await room.device_types.remove(trial, await room.device_types.known(rest[0]))
            case "revoke application":
                await room.trials.find(trial.id)
                await self.services.accounts.granted.revoke(self.users[rest[0]].key, trial.application)
            case "wait":
                self.clock.advance(13 * HOUR_MS)
            case _:
                await self.take_with_the_whole_trial(name)

    async def take_with_the_whole_trial(self, name: str) -> None:
        trial, room = self.trial.record, self.room
        match name:
            case "renew":
                self.trial = await room.trials.renew_application(trial)
            case "stop":
                await room.trials.change(trial, name=None, description=None, stop=True)
            case "delete":
                await room.trials.delete(trial)

    async def accept(self, place: int, name: str | None = None) -> None:
        if name is None:
            name = self.model.invited[place].user if place < len(self.ids) else "ada"
        await self.room.invitations.accept(self.trial.record, self.invitation(place), self.users[name].key)

    def invitation(self, place: int) -> str:
        return self.ids[place] if place < len(self.ids) else "f" * 32

    async def check(self) -> None:
        trial, model = self.trial.record, self.model
        reached = {
            name for name, device in self.devices.items() for one in READ_AND_WRITE if self.reach.allows(device, one)
        }
        assert reached == {name for name in self.devices if name in model.readable}
        assert (await self.is_valid(self.tokens[-1])) is (model.there and not model.stopped)
        if not model.there:
            with pytest.raises(NotFound):
                await self.room.exports.scope(await self.ada(), trial.id)
            return
        for role, names in model.members.items():
            found, total = await self.room.members.page(trial, role, offset=0, count=9)
            assert [user.key for user in found] == [self.users[name].key for name in names]
            assert total == len(names)
        found_devices, _ = await self.room.members.devices(trial, None, offset=0, count=9)
        assert [one.device for one in found_devices] == [self.devices[name] for name in model.connected]
        shown, _ = await self.room.invitations.of_trial(trial, None, offset=0, count=99)
        known = {one.id: self.room.invitations.status_of(one) for one in shown}
        states = {id_: model.state(one) for id_, one in zip(self.ids, model.invited, strict=True)}
        assert known == {id_: InvitationStatus(state) for id_, state in states.items() if state != "gone"}
        page = await self.room.device_types.page(await self.ada(), trial, offset=0, count=9)
        assert {one.record.id for one in page.types} == set(model.types)
        if "ada" in model.members[ADMINISTRATOR]:
            scope = await self.room.exports.scope(await self.ada(), trial.id)
            exported = [one for one in model.connected if model.stopped or one in model.readable]
            assert scope.devices == [self.devices[name] for name in exported]

    async def is_valid(self, token: str) -> bool:
        try:
            await self.services.accounts.tokens.caller(token)
        except Unauthorized:
            return False
        return True


async def follow(history: History, steps: list[tuple[Any, ...]]) -> None:
    for step in steps:
        refusal = history.model.take(step)
        try:
            await history.take(step)
        except DomainError as error:
            assert type(error) is refusal, step  # noqa: PT017 - refusals are what is tested
        else:
            assert refusal is None, step
            if step[0] == "renew":
                assert not await history.is_valid(history.tokens[-1])
                await history.new_token()
        await history.check()


async def run(folder: Path, steps: list[tuple[Any, ...]]) -> None:
    clock = FakeClock(NOW_MS)
    async with ServicesOpener(
        Settings(state_dir=folder), MigratedEngine(folder / "store.sqlite"), clock.clock
    )() as services:
        history = History(services, clock)
        await history.begin(await build_world(services.core.database, services.core.vault))
        await follow(history, steps)


@pytest.mark.both_engines
def test_any_history_of_a_trial_matches_the_model(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rate in ("per_recipient", "per_cause"):  # mails are not what is tested
        monkeypatch.setattr(TrialInvitation, rate, Rate(1_000, 10_000))

    @settings(max_examples=examples(25), deadline=None)
    @given(st.booleans(), st.lists(STEP, min_size=4, max_size=14))
    def check(begun: bool, steps: list[tuple[Any, ...]]) -> None:
        trio.run(run, tmp_path_factory.mktemp("trial"), BEGUN * begun + steps)

    check()
