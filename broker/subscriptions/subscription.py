"""One subscription: what it covers, and its states (reference 11.2)."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from broker.accounts.permissions import Permission, Reach
from broker.devices.registry import Device
from config.limits import NOTIFICATION_MESSAGES, STREAM_RECORDS
from storage.subscriptions import SubscriptionNames, SubscriptionRecord


class SubscriptionStatus(StrEnum):
    PENDING = "PENDING_CALLBACK_VALIDATION"
    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    SUSPENDED = "SUSPENDED"


#: The statuses in which messages are collected.
COLLECTING = frozenset({SubscriptionStatus.ACTIVE, SubscriptionStatus.PAUSED})


class Subscription(msgspec.Struct, frozen=True):
    record: SubscriptionRecord
    names: SubscriptionNames

    @property
    def key(self) -> int:
        return self.record.key

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def is_stream(self) -> bool:
        return self.record.is_stream

    @property
    def is_of_actions(self) -> bool:
        return self.record.message_type == "action"

    @property
    def is_of_alarms(self) -> bool:
        return self.record.message_type == "alarm"

    @property
    def most_entries(self) -> int:
        """How many messages one notification may have."""
        if self.record.is_stream:
            return STREAM_RECORDS
        return 1 if self.is_of_actions else NOTIFICATION_MESSAGES

    @property
    def query(self) -> Mapping[str, str]:
        """`subscriptionQuery` of a notification (reference 11.3)."""
        names = self.names
        members = {
            "uid": names.user_id,
            "sdid": names.source_id,
            "sdtid": names.device_type_id,
            "ddid": names.destination_id,
        }
        return {name: value for name, value in members.items() if value is not None}

    def covers(self, device: Device, reach: Reach) -> bool:
        """Whether messages of this device, or Actions to it, belong to the subscription.

        `reach` is that of the application for the user of the subscription.
        """
        if self.is_of_alarms:
            return False
        record = self.record
        one = record.destination if record.destination is not None else record.source
        if one is not None:
            is_chosen = device.key == one and (device.owner == record.user or record.user in device.shared_with)
        else:
            is_shared = record.include_shared and record.user in device.shared_with
            is_chosen = (device.owner == record.user or is_shared) and record.device_type in {None, device.type_key}
        return is_chosen and reach.allows(device, Permission.READ)
