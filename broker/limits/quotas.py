"""Message quotas: units by month for organizations, messages by day for devices on a plan (reference 21.2).

A unit is every started 1,024 bytes of `data`. A message from a device or application is charged to the organization of
the source's type, a delivery to a device on its own channel to the organization of the destination's type. Only
accepted messages are charged, so `Ingest` checks the quota last. An Action to a connected device needs quota for its
delivery, too; a delivery without quota is dropped. Values that are wanted of a device are charged when they are wanted
and when the device is given them.

Monetization puts devices on plans: `set_device_limit`. For devices of cloud connectors, requests to the external cloud
count instead of messages and deliveries: `charge_connector_request`. An accepted Action reserves one of the day's
requests (`charge_action`) until its requests were sent (`release_request`), so none is accepted that cannot be sent.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import structlog
import trio

from broker.clock import Clock
from broker.devices.registry import Device
from broker.envelope import Action
from broker.errors import ValidationFailed
from broker.limits.allowance import UNLIMITED, Allowance, Usage
from broker.limits.ledger import Ledger
from broker.limits.periods import utc_day, utc_month
from broker.limits.refusals import DailyQuotaExceeded, MonthlyQuotaExceeded, PlanLimitsNotSet
from broker.loops import Loop, Wakeup
from broker.mail import DeviceQuotaUsedUp, Mails
from storage.database import Database
from storage.keys import DeviceKey, OrganizationKey

UNIT_BYTES: Final = 1024
_RETRY_SECONDS: Final = 5
_log = structlog.get_logger(__name__)


def units_of(size: int) -> int:
    """The units of a message or an Action of `size` bytes; an empty one is one unit."""
    return -(-size // UNIT_BYTES) or 1


class QuotaStanding(msgspec.Struct, frozen=True):
    """The use of the quotas of an organization and a device. `device` is None for a device on no plan."""

    organization: Usage
    device: Usage | None


class ReservedRequest:
    """A request to the external cloud that `charge_action` reserved for an Action to the device with this key."""

    def __init__(self, quotas: "Quotas", device: DeviceKey) -> None:
        self.device = device
        self._quotas: Quotas | None = quotas

    def release(self) -> None:
        """Give it back, to charge a request or because none will be sent. A second call does nothing."""
        if self._quotas is not None:
            self._quotas.release_request(self.device)
            self._quotas = None


class QuotaStatistics(msgspec.Struct, frozen=True):
    """`owners_told` counts devices whose owner was told today; the last three members count since the start."""

    organizations: int
    devices_on_a_plan: int
    owners_told: int
    units: int
    refused: int
    deliveries_dropped: int


class Quotas:
    """Charges messages, Actions and deliveries without waiting: counts are in memory, and the ledger saves them."""

    def __init__(
        self, database: Database, clock: Clock, ledger: Ledger, mails: Mails, is_online: Callable[[DeviceKey], bool]
    ) -> None:
        """`is_online`: whether Actions can be delivered now to the device with this key."""
        self._database = database
        self._clock = clock
        self._ledger = ledger
        self._mails = mails
        self._is_online = is_online
        self._organizations: dict[OrganizationKey, Allowance] = {}
        self._devices: dict[DeviceKey, Allowance] = {}
        self._reserved: Counter[DeviceKey] = Counter()  # requests for accepted Actions that were not sent yet
        self._has_unknown = False  # organizations added after the last reload are counted, but not limited yet
        self._used_up: dict[DeviceKey, Device] = {}  # devices whose owners are to be told
        self._told: set[DeviceKey] = set()  # devices whose owners were told on the day that ends at `_told_until_ms`
        self._told_until_ms = 0
        self._wakeup = Wakeup()
        self._reloading = trio.Lock()
        self._units = self._refused = self._dropped = 0
        #: Does what needs the store: reads the limits of new organizations, and queues mails to owners.
        self.attend_forever = Loop(
            self._attend, wakeup=self._wakeup, failure="quotas_not_attended", retry_seconds=_RETRY_SECONDS
        ).run

    # --- Limits ---

    async def reload(self) -> None:
        """Read the limit of every organization again. Raises StoreError."""
        async with self._reloading:  # the latest reading is set last
            self._has_unknown = False
            try:
                limits = await self._database.read(lambda tx: tx.limits.monthly())
            except BaseException:  # whatever it is; raised again
                self._has_unknown = True
                raise
            is_unknown, now_ms = self._has_unknown, self._clock.now_ms()  # one was added during the read
            for organization, limit in limits.items():
                self._organization(organization, now_ms).limit = limit
            self._has_unknown = is_unknown

    def set_device_limit(self, device: DeviceKey, limit: int | None) -> None:
        """Put a device on a plan or take it off. The device's count of the day stays.

        Args:
            device: the device's key.
            limit: messages a day; -1 is unlimited, None is no plan.
        """
        known = self._devices.get(device)
        if limit is None:
            if known is not None:
                known.retire()
                del self._devices[device]
        elif known is not None:
            known.limit = limit
        else:
            name = f"quota device {device}"
            self._devices[device] = Allowance(name, utc_day, limit, self._ledger, self._clock.now_ms())

    def _organization(self, key: OrganizationKey, now_ms: int) -> Allowance:
        found = self._organizations.get(key)
        if found is None:
            found = self._organizations[key] = Allowance(
                f"quota organization {key}", utc_month, UNLIMITED, self._ledger, now_ms
            )
            self._has_unknown = True
            self._wakeup.set()
        return found

    def _messages_of(self, device: Device) -> Allowance | None:
        """The daily allowance for the device's messages and deliveries; None without one."""
        found = self._devices.get(device.record.key)
        return None if found is None or device.type.record.has_cloud_connector else found

    # --- Charging ---

    def charge_message(self, device: Device, size: int, now_ms: int) -> None:
        """Charge a data message of `size` bytes.

        Raises DailyQuotaExceeded, MonthlyQuotaExceeded, PlanLimitsNotSet; then nothing is charged.
        """
        if self.try_charge_message(device, size, now_ms):
            return
        daily = self._messages_of(device)
        if daily is not None:
            self._require_day(device, daily, now_ms)
        raise self._refusal(device, self._organization(device.type_organization, now_ms), now_ms)

    def try_charge_message(self, device: Device, size: int, now_ms: int) -> bool:
        """As `charge_message`, but return False instead of raising; such a refusal is neither counted nor reported."""
        daily = self._messages_of(device) if self._devices else None
        if daily is not None and not daily.has_room(1, now_ms):
            return False
        payer = device.type.record.organization
        organization = self._organizations.get(payer) or self._organization(payer, now_ms)
        units = -(-size // UNIT_BYTES) or 1  # as `units_of`, but without a call for each message
        if not organization.take(units, now_ms):
            return False
        self._units += units
        if daily is not None:
            self._use_day(device, daily, now_ms)
        return True

    def charge_action(
        self, source: Device, destination: Device, size: int, now_ms: int, *, is_sent: bool = True
    ) -> None:
        """Charge an Action to its source; check the quota for its delivery. Raises as `charge_message`.

        Unless `is_sent` is False, the Action is to be sent to the external cloud if the destination has a connector:
        one request is reserved, which the caller gives back with `release_request`.
        """
        has_connector = destination.type.record.has_cloud_connector
        daily = self._devices.get(destination.key) if is_sent or not has_connector else None
        if daily is not None:
            self._require_day(destination, daily, now_ms, 1 + self._reserved[destination.key] if has_connector else 1)
        units = units_of(size)
        delivery = units if self._is_online(destination.key) else 0
        inbound = self._organization(source.type_organization, now_ms)
        outbound = self._organization(destination.type_organization, now_ms)
        if not inbound.has_room(units + delivery if outbound is inbound else units, now_ms):
            raise self._refusal(source, inbound, now_ms)
        if delivery and not outbound.has_room(delivery, now_ms):
            raise self._refusal(destination, outbound, now_ms)
        inbound.use(units)
        self._units += units
        if has_connector and is_sent:
            self.reserve_request(destination)

    def admits(self, device: Device, action: Action) -> bool:
        """Whether the quotas allow the delivery of this Action now."""
        now_ms = self._clock.now_ms()
        daily = self._messages_of(device)
        has_room = self._organization(device.type_organization, now_ms).has_room(
            units_of(len(action.data)), now_ms
        ) and (daily is None or daily.has_room(1, now_ms))
        if not has_room:
            self._dropped += 1
        return has_room

    def delivered(self, device: Device, action: Action) -> None:
        """Charge the delivery of an Action that `admits` allowed."""
        now_ms, units = self._clock.now_ms(), units_of(len(action.data))
        self._organization(device.type_organization, now_ms).use(units)
        self._units += units
        if (daily := self._messages_of(device)) is not None:
            self._use_day(device, daily, now_ms)

    def require_wish(self, device: Device, size: int) -> None:
        """Check the quota for values that are wanted of a device: `size` bytes. Raises MonthlyQuotaExceeded,
        PlanLimitsNotSet."""
        now_ms = self._clock.now_ms()
        organization = self._organization(device.type_organization, now_ms)
        if not organization.has_room(units_of(size), now_ms):
            raise self._refusal(device, organization, now_ms)

    def wished(self, device: Device, size: int) -> None:
        """Charge values that are wanted, which `require_wish` allowed."""
        self._organization(device.type_organization, self._clock.now_ms()).use(units_of(size))
        self._units += units_of(size)

    def wish_delivered(self, device: Device, size: int) -> None:
        """Charge that a device was given what is wanted of it: also beyond its quota, since it was accepted."""
        self.wished(device, size)
        if (daily := self._messages_of(device)) is not None:
            self._use_day(device, daily, self._clock.now_ms())

    def reserve_request(self, device: Device) -> None:
        """Keep one of the day's requests to the external cloud for an Action to this device."""
        self._reserved[device.key] += 1

    def release_request(self, device: DeviceKey) -> None:
        """The Action for which a request was reserved was sent, or will not be."""
        if self._reserved[device] > 1:
            self._reserved[device] -= 1
        else:
            del self._reserved[device]

    def charge_connector_request(self, device: Device) -> None:
        """Charge a request to the external cloud for this device, beside the reserved ones.

        Raises DailyQuotaExceeded.
        """
        daily, now_ms = self._devices.get(device.key), self._clock.now_ms()
        if daily is not None:
            self._require_day(device, daily, now_ms, 1 + self._reserved[device.key])
            self._use_day(device, daily, now_ms)

    def _refusal(self, device: Device, organization: Allowance, now_ms: int) -> MonthlyQuotaExceeded | PlanLimitsNotSet:
        self._refused += 1
        organization_id = device.type.record.organization_id
        if organization.limit < UNLIMITED:
            return PlanLimitsNotSet(organization_id, device.id)
        return MonthlyQuotaExceeded(organization.wait_seconds(now_ms), organization_id)

    def _require_day(self, device: Device, daily: Allowance, now_ms: int, messages: int = 1) -> None:
        if not daily.has_room(messages, now_ms):
            self._refused += 1
            self._tell_owner(device, now_ms)
            raise DailyQuotaExceeded(daily.wait_seconds(now_ms), device.id)

    def _use_day(self, device: Device, daily: Allowance, now_ms: int) -> None:
        daily.use(1)
        if not daily.has_room(1, now_ms):
            self._tell_owner(device, now_ms)

    def standing(self, device: Device, by_day: Device | None = None) -> QuotaStanding:
        """The quotas of the organization that `device` is charged to and of the plan of `by_day` or else `device`."""
        now_ms = self._clock.now_ms()
        daily = self._devices.get((by_day or device).key)
        return QuotaStanding(
            self._organization(device.type_organization, now_ms).usage(now_ms),
            None if daily is None else daily.usage(now_ms),
        )

    def of_organization(self, organization: OrganizationKey) -> Usage:
        """The organization's quota of this month, and its use."""
        now_ms = self._clock.now_ms()
        return self._organization(organization, now_ms).usage(now_ms)

    def used_by_organization(self, now_ms: int) -> dict[OrganizationKey, int]:
        """The units that each organization has used in this month."""
        return {key: one.usage(now_ms).used for key, one in self._organizations.items()}

    def limit_of(self, kind: str, key: int) -> int | None:
        """Monthly limit of an organization, or daily limit of a device on a plan; None if nothing is charged to it."""
        held: Mapping[Any, Allowance] = self._organizations if kind == "organization" else self._devices
        found = held.get(key)
        return None if found is None else found.limit

    # --- Mails to owners ---

    def _tell_owner(self, device: Device, now_ms: int) -> None:
        told = self._told_on_day(now_ms)
        if device.key not in told:
            told.add(device.key)
            self._used_up[device.key] = device
            self._wakeup.set()

    def _told_on_day(self, now_ms: int) -> set[DeviceKey]:
        """The devices whose owners were told today. The first call of a day forgets the day before."""
        _since_ms, until_ms = utc_day(now_ms)
        if until_ms != self._told_until_ms:
            self._told_until_ms = until_ms
            self._told.clear()
        return self._told

    async def _attend(self) -> None:
        if self._has_unknown:
            await self.reload()
        while self._used_up:
            key, device = self._used_up.popitem()
            try:
                await self._send_mail(device)
            except BaseException:  # whatever it is; raised again
                self._used_up.setdefault(key, device)
                raise

    async def _send_mail(self, device: Device) -> None:
        """Queue the mail. The rate of this kind of mail allows one a day for each device, over restarts, too."""
        daily = self.standing(device).device
        owner = await self._database.read(lambda tx: tx.accounts.user(device.owner))
        if daily is None or owner is None:  # the device is on no plan any more, or its owner is gone
            return
        mail = DeviceQuotaUsedUp(
            device=device.record.name, device_id=device.id, limit=daily.limit, reset_on=daily.until_ms
        )
        try:
            await self._mails.send(owner.email, mail, cause=device.id)
        except ValidationFailed as error:
            _log.warning("quota_mail_not_sent", device=device.id, reason=str(error))

    def statistics(self) -> QuotaStatistics:
        return QuotaStatistics(
            organizations=len(self._organizations),
            devices_on_a_plan=len(self._devices),
            owners_told=len(self._told_on_day(self._clock.now_ms())),
            units=self._units,
            refused=self._refused,
            deliveries_dropped=self._dropped,
        )
