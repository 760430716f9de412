"""/operator/users, organizations, devices, connections and samples: who uses this service (reference 27.21)."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from broker.accounts.room import AccountsRoom
from broker.core import Core
from broker.operating.room import OperatingRoom
from broker.provisioning.service import Provisioning
from broker.routing.room import RoutingRoom
from broker.trace.audit import AuditEvent, entry_of
from config.limits import CONNECTIONS_SHOWN, EMAIL_MAX_CHARACTERS, NAME_MAX_CHARACTERS, ORGANIZATIONS_SHOWN
from protocols.http.calls import USER, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.named import ONLY_OPERATORS
from protocols.http.rest.operator import OPERATOR
from protocols.http.schema import Amount, Count, Data, Id, NumberedPage, Offset, Shape, Timestamp, about


class _Search(Shape):
    search: Annotated[str, Meta(max_length=64, description="A part of address, name or id")] = ""
    count: Count = 100
    offset: Offset = 0


class PersonObject(Shape, kw_only=True):
    shape = "OperatedUser"
    example = {
        "id": samples.UID,
        "email": "ada@example.org",
        "fullName": "Ada Example",
        "accountType": "LOCAL",
        "isVerified": True,
        "isDisabled": False,
        "createdOn": samples.TS,
        "devices": 3,
        "organizations": "Acme (developer)",
    }

    id: Id
    email: str
    full_name: str
    account_type: str
    is_verified: Annotated[bool, about("The user has proved to own the address")]
    is_disabled: bool
    created_on: Timestamp
    devices: Amount
    organizations: Annotated[str, about("Names, each with the user's role")]


class _Organization(Shape):
    example = {
        "id": samples.OID,
        "name": "Acme",
        "monthlyMessages": -1,
        "members": 2,
        "types": 1,
        "applications": 1,
    }

    id: Id
    name: str
    monthly_messages: Annotated[int, about("The quota of messages; -1 is unlimited")]
    members: Amount
    types: Amount
    applications: Amount


F = TypeVar("F", bound=Shape)


class _Organizations(Shape):
    organizations: list[_Organization]


class _Device(Shape):
    example = {
        "id": samples.DID,
        "name": "Kitchen light",
        "ownerId": samples.UID,
        "ownerEmail": "ada@example.org",
        "typeName": "example.light",
        "enabled": True,
        "createdOn": samples.TS,
    }

    id: Id
    name: str
    owner_id: Id
    owner_email: str
    type_name: str
    enabled: bool
    created_on: Timestamp


class _Connection(Shape):
    example = {
        "did": samples.DID,
        "name": "Kitchen light",
        "ownerId": samples.UID,
        "protocol": "MQTT",
        "since": samples.TS,
    }

    did: Id
    name: str
    owner_id: Id
    protocol: str
    since: Timestamp


class _Connections(Shape):
    example = {"connections": [_Connection.example], "total": 1}

    connections: Annotated[list[_Connection], about("The newest first")]
    total: Amount


class _Sample(Shape):
    example = {
        "at": samples.TS,
        "seconds": 300,
        "messages": 600,
        "connections": 3,
        "commits": 600,
        "commitUs": 900,
        "refusals": 0,
        "storeBytes": 4_096,
    }

    at: Timestamp
    seconds: Annotated[Amount, about("How long the counts are of")]
    messages: Amount
    connections: Annotated[Amount, about("Of devices, at that moment")]
    commits: Amount
    commit_us: Annotated[Amount, about("Mean duration of a commit in microseconds")]
    refusals: Amount
    store_bytes: Amount


class _Samples(Shape):
    samples: Annotated[list[_Sample], about("Of the last day, the oldest first")]


class _Change(Shape):
    example = {"uid": samples.UID, "action": "disable"}

    uid: Annotated[Id, about("Whose account")]
    action: Literal["disable", "enable", "resetPassword", "resetSecondFactor"]


class _Changed(Shape, kw_only=True):
    example = {"uid": samples.UID}

    uid: Id
    link: Annotated[str, about("With which the user sets a new password; shown once, good for half an hour")] | (
        UnsetType
    ) = UNSET


class _Invitation(Shape):
    example = {"email": "eve@example.net"}

    email: Annotated[str, Meta(min_length=3, max_length=EMAIL_MAX_CHARACTERS, description="Who is invited")]
    organization: Annotated[str, Meta(max_length=NAME_MAX_CHARACTERS, description="Of the new user, by name")] = ""
    role: Annotated[Literal["administrator", "developer", "viewer"], about("In it")] = "developer"


class _Invited(Shape):
    example = {"email": "eve@example.net", "link": "https://hub.example.net/accounts/signup?code=…"}

    email: str
    link: Annotated[str, about("With which the account is opened; shown once")] | UnsetType = UNSET


class OperatorPeopleCalls(RestCalls):
    chapter = OPERATOR

    def __init__(
        self,
        core: Core,
        accounts: AccountsRoom,
        routing: RoutingRoom,
        provisioning: Provisioning,
        operating: OperatingRoom,
    ) -> None:
        self._core = core
        self._provisioning = provisioning
        self._accounts = accounts
        self._connections = routing.connections
        self._samples = operating.samples

    async def _found(
        self, query: _Search, search: Callable[[Any], Callable[..., tuple[Iterable[Any], int]]], kind: type[F]
    ) -> NumberedPage[list[F]]:
        """A page of what a search of the store finds, each as one of `kind`."""
        found, total = await self._core.database.read(
            lambda tx: search(tx)(query.search.strip(), offset=query.offset, limit=query.count)
        )
        entries = [msgspec.convert(one, kind, from_attributes=True) for one in found]
        return NumberedPage(entries, total, query.offset, len(entries))

    @RestCall("GET", "/operator/users", tokens=USER, on=ONLY_OPERATORS, summary="Who has an account")
    async def users(self, query: _Search) -> NumberedPage[list[PersonObject]]:
        return await self._found(query, lambda tx: tx.operating.people, PersonObject)

    @RestCall(
        "POST",
        "/operator/users",
        tokens=USER,
        on=ONLY_OPERATORS,
        summary="Disable, enable or help a user",
        about="`disable` ends sessions and tokens; the devices go on. `resetPassword` answers a `link` to hand over.",
        refusals={404: "There is no such user.", 409: "The user signs in with an identity provider."},
    )
    async def change(self, body: _Change) -> Data[_Changed]:
        link: str | UnsetType = UNSET
        if body.action == "disable":
            await self._accounts.disabling.disable(body.uid)
        elif body.action == "enable":
            await self._accounts.disabling.enable(body.uid)
        elif body.action == "resetSecondFactor":
            await self._accounts.second_factors.reset((await self._accounts.users.find(body.uid)).email)
        else:
            reset = await self._accounts.resets.open_for(body.uid)
            link = f"{self._core.site.mailed_accounts_url}/{reset.path}?code={reset.code}"
        command = {"resetPassword": "reset password", "resetSecondFactor": "reset second-factor"}
        name = f"user {command.get(body.action, body.action)}"
        now_ms = self._core.clock.now_ms()
        self._core.audit.put(entry_of(AuditEvent.COMMAND, f"user {body.uid}", now_ms=now_ms, command=name))
        return Data(_Changed(uid=body.uid, link=link))

    @RestCall(
        "POST",
        "/operator/invitations",
        tokens=USER,
        on=ONLY_OPERATORS,
        summary="Invite somebody to open an account",
        about="A mail goes out where a mail server is set. An earlier invitation of the address ends.",
    )
    async def invite(self, body: _Invitation) -> Data[_Invited]:
        entry: dict[str, Any] = {"email": body.email, "again": True}
        if body.organization:
            entry |= {"organization": body.organization, "role": body.role}
        report = await self._provisioning.apply({"invitations": [entry]})
        links = [one.value for one in report.generated if one.value is not None]
        return Data(_Invited(body.email, links[0] if links else UNSET))

    @RestCall("GET", "/operator/organizations", tokens=USER, on=ONLY_OPERATORS, summary="The organizations")
    async def organizations(self) -> Data[_Organizations]:
        found = await self._core.database.read(lambda tx: tx.operating.organizations(limit=ORGANIZATIONS_SHOWN))
        return Data(_Organizations([msgspec.convert(one, _Organization, from_attributes=True) for one in found]))

    @RestCall("GET", "/operator/devices", tokens=USER, on=ONLY_OPERATORS, summary="The devices of everybody")
    async def devices(self, query: _Search) -> NumberedPage[list[_Device]]:
        return await self._found(query, lambda tx: tx.operating.devices, _Device)

    @RestCall(
        "GET",
        "/operator/connections",
        tokens=USER,
        on=ONLY_OPERATORS,
        summary="Which devices are connected now",
        about=f"The newest {CONNECTIONS_SHOWN}.",
    )
    async def connections(self) -> Data[_Connections]:
        links, total = self._connections.newest(CONNECTIONS_SHOWN)
        found = [
            _Connection(one.device.id, one.device.record.name, one.device.owner_id, one.protocol, one.since)
            for one in links
        ]
        return Data(_Connections(found, total))

    @RestCall(
        "GET",
        "/operator/samples",
        tokens=USER,
        on=ONLY_OPERATORS,
        summary="How busy the service was in the last day",
        about="A sample every five minutes. They outlive a restart of the daemon.",
    )
    async def samples(self) -> Data[_Samples]:
        found = await self._samples.all()
        return Data(_Samples([msgspec.convert(one, _Sample, from_attributes=True) for one in found]))
