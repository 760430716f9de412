"""The counters of the LWM2M server, as `trunkline statistics` shows them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lwm2mStatistics:
    registered: int
    asleep: int  # in queue mode, and silent for longer than they stay awake
    registrations: int
    updates: int
    refused: int  # requests of devices
    expired: int  # registrations whose lifetime has passed
    notifications: int
    unreadable: int  # answers and notifications
    communication_failures: int  # that interrupted the sequence after a registration
