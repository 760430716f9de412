"""Publishes messages at a broker of MQTT, each at least once, in order (reference 30.1)."""

from collections.abc import Sequence
from dataclasses import dataclass

from broker.forwarding.log_reader import Block, LoadedMessage
from broker.forwarding.port import Broker, BrokerMessage
from broker.forwarding.position import LogPosition
from broker.forwarding.progress import passed
from broker.forwarding.report import ForwardReport
from broker.forwarding.selection import topic_of
from broker.messages.ingest import Ingest
from config.settings import Forward
from storage.keys import Position


@dataclass(eq=False)
class BrokerUpstream:
    """One connection to it."""

    _entry: Forward
    _broker: Broker
    _ingest: Ingest
    _position: LogPosition
    _report: ForwardReport

    async def send(self, block: Block, loaded: Sequence[LoadedMessage]) -> None:
        """Raises UpstreamError, StoreError."""
        if loaded:
            await self._broker.publish([self._message(one) for one in loaded])
            self._report.count_sent(len(loaded))
        self._position.record = passed(block.record, block.after, block.upto, block.upto, of_gap=block.of_gap)
        await self._position.save()
        self._report.works()

    def _message(self, one: LoadedMessage) -> BrokerMessage:
        return BrokerMessage(
            topic_of(self._entry.topic, one.device),
            one.message.data.encode(),
            (
                ("mid", self._ingest.mid(Position(one.message.position))),
                ("ts", str(one.message.ts)),
                ("did", one.device.id),
                ("path", ",".join(one.path)),
            ),
        )
