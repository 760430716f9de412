"""The table `subscriptions` of the provision file: callbacks and cloud streams of applications (reference 11.2).

The operator vouches for a callback: it is active at once, without a handshake.
"""

from typing import Any, Final

from msgspec.structs import replace

from broker.accounts.permissions import Grants, Permission, Reach
from broker.accounts.tokens import user_through
from broker.cluster.kinds import SUBSCRIPTION
from broker.devices.registry import device_in
from broker.errors import Conflict
from broker.ids import new_id
from broker.provisioning.document import SubscriptionEntry
from broker.provisioning.reading import EntryLocation
from broker.provisioning.report import MASKED, ChangedKey
from broker.provisioning.run import ProvisioningRun, given
from broker.subscriptions.addresses import callback_problem, is_allowed_callback
from broker.subscriptions.creation import NewSubscription, StreamsNotInstalled, SubscribedObjects, combination
from broker.subscriptions.storing import add_subscription, begin_collecting, new_record
from broker.subscriptions.subscription import SubscriptionStatus
from broker.subscriptions.subscriptions import Subscriptions
from broker.trace.audit import AuditEvent, note
from storage.keys import DeviceKey, DeviceTypeKey
from storage.records import ApplicationRecord, UserRecord
from storage.subscriptions import SubscriptionRecord

#: The keys of an entry by the members of a call.
_KEYS: Final = {"callbackUrl": "callback_url", "subscriptionType": "subscription_type"}
#: Members that identify a subscription among the ones of an application for a user; with an id, none of them changes.
_COVERS: Final = ("message_type", "device_type", "source", "destination")
#: The keys of an entry by the attributes that may change.
_CHANGED: Final = {
    "include_shared": "include_shared_devices",
    "stream_key": "cloud_key",
    "stream_secret": "cloud_secret",
    "stream_region": "cloud_region",
    "stream_name": "cloud_stream_name",
}
_WHERE: Final = ("callback_url", "stream_region", "stream_name")


class SubscriptionTables:
    def __init__(self, run: ProvisioningRun, subscriptions: Subscriptions) -> None:
        """`subscriptions` says which payload, addresses and streams are possible."""
        self._run = run
        self._subscriptions = subscriptions

    def put_subscription(self, at: EntryLocation, entry: SubscriptionEntry) -> None:
        """Add or change a subscription. Without an id, it stands for the one with its application, owner, devices and
        address."""
        run = self._run
        owner, application = run.user_of(at, "owner", entry.owner), run.application_of(at, entry.application)
        wanted = _wanted(entry, owner)
        _check_stream(at, entry, wanted)
        for finding in combination(wanted):
            raise at.refusal(_KEYS.get(finding.field, finding.field), finding.messages[0])
        self._check_address(at, application, entry)
        chosen = self._chosen(at, entry, owner, application)
        record = replace(
            new_record(
                run.vault, wanted, chosen, payload=entry.payload or self._subscriptions.payload, now_ms=run.now_ms
            ),
            status=SubscriptionStatus.ACTIVE,
            nonce=None,
            handshake_on=None,
        )
        known = self._known(at, entry, record)
        if known is None:
            if wanted.is_stream and not self._subscriptions.has_streams:
                raise at.refusal("subscription_type", str(StreamsNotInstalled()))
            id_ = entry.id or run.generate(at, application.name, "id", new_id())
            try:
                added = add_subscription(run.tx, replace(record, id=id_))
            except Conflict as error:
                raise at.refusal("owner", str(error)) from error
            run.tx.tell(SUBSCRIPTION, added.key)
            return run.created(at, added.id, _name(application, record))
        return run.found(at, known.id, _name(application, known), self._change(entry, known, record))

    def _check_address(self, at: EntryLocation, application: ApplicationRecord, entry: SubscriptionEntry) -> None:
        main = application.redirect_uris[0] if application.redirect_uris else None
        url = entry.callback_url
        if url is not None and not is_allowed_callback(url, main, allow_private=self._subscriptions.allow_private):
            raise at.refusal("callback_url", callback_problem(url, main))

    def _chosen(
        self, at: EntryLocation, entry: SubscriptionEntry, owner: UserRecord, application: ApplicationRecord
    ) -> SubscribedObjects:
        """The objects that the entry names. Raises ValidationFailed unless the application may read them."""
        tx = self._run.tx
        grants = Grants(tx.accounts.grants(application.key, owner.key))
        caller = user_through(owner.key, owner.id, application.key, application.id, application.organization)
        reach = Reach(caller, grants)
        if not grants.of(owner.key):
            raise at.refusal("application", f"{owner.email} has granted {application.name} nothing: see [[grants]]")
        device_type: DeviceTypeKey | None = None
        if entry.sdtid is not None:
            type_ = self._run.type_of(at, "sdtid", entry.sdtid)
            if not reach.allows_type(owner.key, type_, Permission.READ):
                raise at.refusal("sdtid", f"{owner.email} has not granted {application.name} READ on this type")
            device_type = type_.key
        source = self._device(at, "sdid", entry.sdid, reach)
        return SubscribedObjects(
            application.key, owner.key, device_type, source, self._device(at, "ddid", entry.ddid, reach)
        )

    def _device(self, at: EntryLocation, key: str, id_: str | None, reach: Reach) -> DeviceKey | None:
        if id_ is None:
            return None
        device = device_in(self._run.tx, self._run.tx.devices.by_id(id_))
        if device is None:
            raise at.refusal(key, f"there is no device {id_!r}")
        if not reach.allows(device, Permission.READ):
            raise at.refusal(key, "the application may not read this device for the owner")
        return device.key

    def _known(
        self, at: EntryLocation, entry: SubscriptionEntry, record: SubscriptionRecord
    ) -> SubscriptionRecord | None:
        store = self._run.tx.subscriptions
        if entry.id is None:
            of_user = store.of_user(record.application, record.user)
            return self._run.only(at, [one for one in of_user if _same(one, record, (*_COVERS, *_WHERE))])
        known = store.by_id(entry.id)
        if known is not None and (known.application, known.user) != (record.application, record.user):
            raise at.refusal("id", "a subscription of another user or application has this id")
        if known is not None and not (_same(known, record, _COVERS) and known.is_stream == record.is_stream):
            raise at.refusal("id", "the subscription with this id covers something else, and cannot be changed so far")
        return known

    def _change(
        self, entry: SubscriptionEntry, known: SubscriptionRecord, record: SubscriptionRecord
    ) -> list[ChangedKey]:
        """Change what the entry gives. One that was removed, or waits for its handshake, is active again; one that is
        suspended stays so."""
        run = self._run
        changes: dict[str, Any] = given(entry, "description", "payload")
        changes |= {name: getattr(record, name) for name in (*_WHERE, "stream_key")}
        if entry.include_shared_devices is not None:
            changes["include_shared"] = entry.include_shared_devices
        if entry.cloud_secret is not None and entry.cloud_secret != _opened(run, known):
            changes["stream_secret"] = record.stream_secret
        begins = known.removed_on is not None or known.status == SubscriptionStatus.PENDING
        if begins:
            changes |= {"status": SubscriptionStatus.ACTIVE, "removed_on": None, "nonce": None, "handshake_on": None}
            changes |= {"last_error": None, "failing_since": None}
        wanted = replace(known, **changes)
        if wanted == known:
            return []
        run.tx.subscriptions.put(replace(wanted, modified_on=run.now_ms))
        if begins:
            begin_collecting(run.tx, wanted)
        note(run.tx, AuditEvent.SUBSCRIPTION_CHANGED, f"subscription {known.id}", now_ms=run.now_ms)
        run.tx.tell(SUBSCRIPTION, known.key)
        return [
            ChangedKey(_CHANGED.get(name, name), *(_shown(name, getattr(one, name)) for one in (known, wanted)))
            for name in changes
            if name not in {"nonce", "handshake_on"} and getattr(known, name) != getattr(wanted, name)
        ]


def _name(application: ApplicationRecord, record: SubscriptionRecord) -> str:
    return f"{application.name} to {record.callback_url or record.stream_name}"


def _shown(name: str, value: object) -> object:
    return MASKED if name == "stream_secret" else value


def _check_stream(at: EntryLocation, entry: SubscriptionEntry, wanted: NewSubscription) -> None:
    for key in ("cloud_key", "cloud_secret", "cloud_region", "cloud_stream_name"):
        if (getattr(entry, key) is not None) is not wanted.is_stream:
            raise at.refusal(key, "required for a stream" if wanted.is_stream else "only for a stream")
    if wanted.is_stream and entry.callback_url is not None:
        raise at.refusal("callback_url", "not for a stream")


def _opened(run: ProvisioningRun, known: SubscriptionRecord) -> str | None:
    return None if known.stream_secret is None else run.vault.open(known.stream_secret)


def _same(one: SubscriptionRecord, other: SubscriptionRecord, names: tuple[str, ...]) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _wanted(entry: SubscriptionEntry, owner: UserRecord) -> NewSubscription:
    return NewSubscription(
        spelling=entry.subscription_type or "httpCallback",
        message_type=entry.message_type,
        uid=owner.id,
        sdtid=entry.sdtid,
        sdid=entry.sdid,
        ddid=entry.ddid,
        description=entry.description,
        include_shared=bool(entry.include_shared_devices),
        payload=entry.payload,
        callback_url=entry.callback_url,
        stream_key=entry.cloud_key,
        stream_secret=entry.cloud_secret,
        stream_region=entry.cloud_region,
        stream_name=entry.cloud_stream_name,
    )
