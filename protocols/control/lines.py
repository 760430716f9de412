"""The objects in answers of the control socket. The command line imports them without the daemon."""

from typing import Final

import msgspec

from storage.keys import Milliseconds

LIST_MAX: Final = 10_000
AUDIT_MAX: Final = 10_000


class DeviceLine(msgspec.Struct, frozen=True):
    """A device as the operator sees it. Times are milliseconds since the epoch."""

    id: str
    name: str
    device_type: str
    owner: str
    enabled: bool
    availability: str
    last_time_online: int | None
    created_on: int


class ImportedLine(msgspec.Struct, frozen=True):
    """A device of an import: its token, and the code and link of its label."""

    id: str
    name: str
    type: str
    token: str
    code: str
    link: str


class FoundLine(msgspec.Struct, frozen=True):
    """A device that an MQTT client announces. `device`: the id of the one that was made of it; empty without one."""

    id: str
    name: str
    model: str
    status: str
    device: str
    fields: int
    actions: int
    problems: list[str]


class UserLine(msgspec.Struct, frozen=True):
    """A user as the operator sees it. The time is milliseconds since the epoch."""

    id: str
    email: str
    name: str
    full_name: str
    account_type: str
    is_verified: bool
    is_disabled: bool
    created_on: int


class ApplicationLine(msgspec.Struct, frozen=True):
    """An application as the operator sees it."""

    id: str
    name: str
    methods: tuple[str, ...]
    redirect_uris: tuple[str, ...]


class LimitLine(msgspec.Struct, frozen=True):
    """A line of the answer about limits; see `broker/limits/overview.py: UsedLimit`."""

    what: str
    whose: str
    used: int
    limit: int | None
    opens_on: int
    is_used_up: bool


class ExplainedCondition(msgspec.Struct, frozen=True):
    field: str
    held: bool | None
    text: str


class Explained(msgspec.Struct, frozen=True):
    """One evaluation. `mid` is empty when the time was the cause."""

    at: Milliseconds
    mid: str
    triggers: bool
    counts: bool
    conditions: list[ExplainedCondition]


class ExplainedTime(msgspec.Struct, frozen=True):
    found: list[Explained]
    until: Milliseconds | None  # where to go on, if it is not complete


class ReplayedTrigger(msgspec.Struct, frozen=True):
    at: Milliseconds
    mid: str
    actions: list[str]


class ReplayedTime(msgspec.Struct, frozen=True):
    messages: int
    triggered: int
    triggers: list[ReplayedTrigger]
    until: Milliseconds | None


class OperatorsTier(msgspec.Struct, frozen=True):
    name: str
    type: str
    cost: str
    message_limit: int


class OperatorsPlan(msgspec.Struct, frozen=True):
    """A plan as the operator sees it."""

    device_type: str
    version: int
    status: str
    tiers: tuple[OperatorsTier, ...]


class OperatorsPayment(msgspec.Struct, frozen=True):
    """A payment as the operator sees it."""

    reference: str
    status: str
    price: str
    tier: str
    device: str
    created_on: int
    processor: str
    external_id: str | None  # the processor's id of the payment


class EdgeLine(msgspec.Struct, frozen=True):
    """A store that forwards to this one. `types`: the organization in which its device types are made."""

    name: str
    owner: str
    store: str
    types: str
    devices: int
    devices_max: int
    messages: int
    dropped: int
    upto: int
    seen_on: int | None


class NewEdgeToken(msgspec.Struct, frozen=True):
    name: str
    token: str


class OriginLine(msgspec.Struct, frozen=True):
    """A message here, and its mid at the edge that has sent it."""

    mid: str
    edge: str
    store: str
    remote_mid: str
