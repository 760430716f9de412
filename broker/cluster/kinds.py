"""The kinds of change that a transaction tells, for capabilities that keep something of the store in memory."""

from typing import Any, Final

import msgspec

from broker.cluster.news import NewsKind, event, of_fact, state
from broker.facts import (
    AlarmReported,
    ApplicationGrantsChanged,
    BackupProgressed,
    DeliveriesProgressed,
    DeviceActionDelivered,
    DeviceActionFailed,
    DeviceChanged,
    DeviceCreated,
    DeviceDeleted,
    DeviceDisabled,
    DeviceEnabled,
    DeviceHandedOver,
    DeviceTakenOver,
    DeviceUpdated,
    DeviceWanted,
    Fact,
    GrantsChanged,
    ManagementConfigured,
    PlanApproved,
    ProviderAuthRemoved,
    RuleReported,
    SessionsEnded,
    SharesChanged,
    SubscriptionReported,
    TaskProgressed,
    TokenRevoked,
    UploadProgressed,
    UserProfileUpdated,
)
from storage.device_management import ManagementRecord
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, RuleKey, UserKey
from storage.models import ModelRecord
from storage.records import DeviceRecord, TierRecord
from storage.rules import RuleRecord, RuleState
from storage.subscriptions import SubscriptionNames, SubscriptionRecord
from storage.tasks import DeviceTaskRecord, TaskRecord
from storage.transaction import Transaction
from storage.wanted import WantedRecord


def _device(tx: Transaction, key: DeviceKey) -> DeviceRecord | None:
    return tx.devices.device(key)


def _tier(tx: Transaction, key: DeviceKey) -> TierRecord | None:
    return tx.monetization.tier_of(key)


def _management(tx: Transaction, key: DeviceTypeKey) -> ManagementRecord | None:
    return tx.device_management.management(key)


def _problems(tx: Transaction, key: DeviceTypeKey) -> str:
    return tx.connectors.problems_of(key)


def _task(tx: Transaction, key: int) -> TaskRecord | None:
    return tx.tasks.task(key)


def _model(tx: Transaction, id_: str) -> ModelRecord | None:
    return tx.models.by_id(id_)


def _rule(tx: Transaction, key: RuleKey) -> tuple[RuleRecord, RuleState] | None:
    return tx.rules.rule_and_state(key)


def _subscription(tx: Transaction, key: int) -> tuple[SubscriptionRecord, SubscriptionNames] | None:
    record = tx.subscriptions.by_key(key)
    return None if record is None or record.removed_on is not None else (record, tx.subscriptions.names(record))


def _wanted(tx: Transaction, key: DeviceKey) -> tuple[WantedRecord, ...]:
    return tuple(tx.wanted.open_of(key))


class AlarmEnded(msgspec.Struct, frozen=True):
    """The open alarm of a rule about a device was cleared, by something else than the rule's evaluation."""

    rule: RuleKey
    device: DeviceKey
    is_storm: bool


class DeviceTaskMove(msgspec.Struct, frozen=True):
    """A device task before and after a step."""

    before: DeviceTaskRecord
    after: DeviceTaskRecord


class Replay(msgspec.Struct, frozen=True):
    """`added`: the notifications that did not wait before."""

    subscription: int
    added: int


class SessionBegin(msgspec.Struct, frozen=True):
    """`number` is of the connection on its node. `is_present`: the device's session goes on."""

    device: DeviceKey
    number: int
    is_present: bool


class ConnectionReplaced(msgspec.Struct, frozen=True):
    """A device has connected here: these connections of it to other nodes, by node and number, are over."""

    device: DeviceKey
    replaced: tuple[tuple[str, int], ...]


class Availability(msgspec.Struct, frozen=True):
    """A device has its first persistent connection to any node, or its last one is gone, or it was given a status."""

    device: DeviceKey
    availability: str
    at_ms: Milliseconds


class Provisioned(msgspec.Struct, frozen=True):
    """A provision file was applied: the facts, each with the name of its type, in MessagePack."""

    facts: tuple[tuple[str, bytes], ...]


#: The device's record or its shares; None: it was deleted.
DEVICE: Final = state("device", _device)
#: An access token that a refresh has replaced ends soon.
TOKEN_SHORTENED: Final = event("token shortened", bytes)
#: An account was closed; its devices are to be deleted.
ACCOUNT_CLOSED: Final = event("account closed", UserKey)
#: The device's tier.
TIER: Final = state("tier", _tier)
#: A device has a new connection with a session of MQTT. To end the former connection is not its matter.
SESSION_BEGAN: Final = event("MQTT session began", SessionBegin, is_own=True)
SESSION_EXPIRED: Final = event("MQTT session expired", DeviceKey, is_own=True)
#: A worker, by its name, has something to do, and another node may run it.
WORK_WAITS: Final = event("work waits", str)
#: A device type or its Manifests. The node that has changed it has read it again.
TYPE_CHANGED: Final = event("device type changed", DeviceTypeKey)
#: A provision file was applied. The node that has done it has read everything again.
PROVISIONED: Final = event("provisioned", Provisioned, is_fencing=True)
#: Of several nodes: a connection of a device to another one is over.
CONNECTION_REPLACED: Final = event("connection replaced", ConnectionReplaced, is_fencing=True)
#: Of several nodes: for the events of all.
AVAILABILITY: Final = event("availability", Availability)
#: The failures of a type's connector.
CONNECTOR_PROBLEMS: Final = state("connector problems", _problems)
#: The configuration of device management of a type.
MANAGEMENT: Final = state("management", _management)
#: A task was made, or cancelled.
TASK_ADDED: Final = state("task added", _task)
#: Device tasks of these devices wait, or may begin now.
DEVICES_HAVE_TASKS: Final = event("devices have tasks", tuple[DeviceKey, ...])
#: A node of several has gone; by its name.
NODE_BURIED: Final = event("node buried", str)
#: The phase of a task's roll-out was changed by a call.
ROLLOUT_CHANGED: Final = event("roll-out changed", int)
DEVICE_TASK_MOVED: Final = event("device task moved", DeviceTaskMove)
#: A model of a user, by its id; None: it was removed.
MODEL: Final = state("model", _model)
#: The models of a rule were made or removed.
RULE_MODELS: Final[NewsKind[RuleKey, None]] = NewsKind("models of a rule", RuleKey, is_state=True)
#: A rule, by its key, and its state; None: it was removed.
RULE: Final = state("rule", _rule, is_fencing=True)
#: As `RULE`, of a rule that this node has compiled again, which says nothing to others.
RULE_COMPILED: Final = state("rule compiled", _rule, is_own=True)
#: A rule that runs could not do something.
RULE_FAILED: Final = event("rule failed", RuleReported)
ALARM_ENDED: Final = event("alarm ended", AlarmEnded)
#: A subscription; None: it was removed.
SUBSCRIPTION: Final = state("subscription", _subscription, is_fencing=True)
#: The open wanted values of a device.
WANTED: Final = state("wanted", _wanted)
REPLAYED: Final = event("notifications replayed", Replay)

FACTS: Final[dict[type[Fact], NewsKind[Any, None]]] = {
    kind.key_type: kind
    for kind in (
        of_fact(AlarmReported),
        of_fact(ApplicationGrantsChanged, is_fencing=True),
        of_fact(BackupProgressed, is_state=True),
        of_fact(DeliveriesProgressed, is_state=True),
        of_fact(DeviceActionDelivered),
        of_fact(DeviceActionFailed),
        of_fact(DeviceChanged, is_state=True),
        of_fact(DeviceCreated),
        of_fact(DeviceDeleted, is_fencing=True),
        of_fact(DeviceDisabled, is_fencing=True),
        of_fact(DeviceEnabled),
        of_fact(DeviceHandedOver, is_fencing=True),
        of_fact(DeviceTakenOver),
        of_fact(DeviceUpdated),
        of_fact(DeviceWanted),
        of_fact(GrantsChanged, is_fencing=True),
        of_fact(ManagementConfigured, is_state=True),
        of_fact(PlanApproved, is_state=True),
        of_fact(ProviderAuthRemoved),
        of_fact(RuleReported),
        of_fact(SessionsEnded, is_fencing=True, is_state=True),
        of_fact(SharesChanged, is_fencing=True, is_state=True),
        of_fact(SubscriptionReported),
        of_fact(TaskProgressed, is_state=True),
        of_fact(TokenRevoked, is_fencing=True),
        of_fact(UploadProgressed, is_state=True),
        of_fact(UserProfileUpdated),
    )
}


#: The kinds by their names, by which other nodes know them.
BY_NAME: Final = {
    kind.name: kind
    for kind in (*(one for one in list(globals().values()) if isinstance(one, NewsKind)), *FACTS.values())
}


def publish(tx: Transaction, *facts: Fact) -> None:
    """Have the router publish these facts when the transaction is durable."""
    for fact in facts:
        tx.tell(FACTS[type(fact)], fact)
