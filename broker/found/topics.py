"""The topics at which accepted devices have their states, and say whether they are there."""

from collections.abc import Callable, Iterable, Sequence

from broker.found.clients import ACCEPTED, Announcer, FoundDevice
from broker.found.components import AvailabilityTopic, FieldReading
from config.limits import FOUND_TOPIC_NODES
from storage.keys import DeviceKey

#: Devices that one topic may have the states of.
_DEVICES_OF_A_TOPIC = 20
#: Different templates by which one topic may say whether devices are there.
_TEMPLATES_OF_AVAILABILITY = 5


class FoundTopics:
    """Bounded, because each message of a topic costs the client's readings of all devices there."""

    def __init__(self) -> None:
        # By topic: the device that was made, its client, and what the client's messages say about it.
        self._readings: dict[bytes, list[tuple[DeviceKey, DeviceKey, list[FieldReading]]]] = {}
        self._availability: dict[bytes, list[tuple[DeviceKey, DeviceKey, AvailabilityTopic]]] = {}

    def readings(self, topic: bytes, client: DeviceKey) -> Sequence[tuple[DeviceKey, list[FieldReading]]]:
        """The devices of the client that have states there."""
        return [(made, readings) for made, by, readings in self._readings.get(topic, ()) if by == client]

    def availability(self, topic: bytes, client: DeviceKey) -> Sequence[tuple[DeviceKey, AvailabilityTopic]]:
        """The devices of the client that are said there to be there, or not."""
        return [(made, one) for made, by, one in self._availability.get(topic, ()) if by == client]

    def renew(
        self, clients: Iterable[Announcer], leave_out: Callable[[Announcer, FoundDevice, bytes], None]
    ) -> dict[DeviceKey, tuple[Announcer, FoundDevice]]:
        """Make the tables again; return the accepted devices. `leave_out` is called for each device that has too many
        others, or too costly ones, beside it at a topic."""
        self._readings, self._availability = {}, {}
        accepted: dict[DeviceKey, tuple[Announcer, FoundDevice]] = {}
        costs: dict[bytes, int] = {}
        for client in clients:
            for found in client.found.values():
                if found.record.status != ACCEPTED or (made := found.record.device) is None:
                    continue
                accepted[made] = (client, found)
                by_topic: dict[bytes, list[FieldReading]] = {}
                for reading in found.definition.readings:
                    by_topic.setdefault(reading.topic.encode(), []).append(reading)
                for topic, readings in by_topic.items():
                    cost = costs.get(topic, 0) + sum(one.cost for one in readings)
                    entries = self._readings.setdefault(topic, [])
                    if len(entries) >= _DEVICES_OF_A_TOPIC or cost > FOUND_TOPIC_NODES:
                        leave_out(client, found, topic)
                        continue
                    costs[topic] = cost
                    entries.append((made, client.device.key, readings))
                for one in found.definition.availability:
                    topic = one.topic.encode()
                    tellers = self._availability.setdefault(topic, [])
                    templates = {teller.template for _, _, teller in tellers}
                    if one.template in templates or len(templates) < _TEMPLATES_OF_AVAILABILITY:
                        tellers.append((made, client.device.key, one))
                    else:
                        leave_out(client, found, topic)
        return accepted
