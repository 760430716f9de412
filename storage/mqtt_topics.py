"""Retained messages and access rules of the open topic space (reference 16.6). The caller holds the transaction."""

from typing import Final

import msgspec

from storage.keys import Milliseconds, UserKey
from storage.sql import Store

_COLUMNS: Final = ("topic", "payload", "qos", "properties", "expires_on", "owner")


class RetainedRecord(msgspec.Struct, frozen=True):
    """A row of `mqtt_retained`. `properties` are encoded, empty when there are none. `owner` is the user whose device
    has sent it; None where that is not known. `audience`: the message is the service's own, for devices of these users,
    and in no row."""

    topic: bytes
    payload: bytes
    qos: int
    properties: bytes
    expires_on: Milliseconds | None
    owner: UserKey | None = None
    audience: frozenset[UserKey] | None = None


class TopicRuleRecord(msgspec.Struct, frozen=True):
    """A row of `topic_rule`."""

    kind: str
    subject: int
    topic: str
    publish: bool
    subscribe: bool

    @property
    def identity(self) -> tuple[str, int, str]:
        return self.kind, self.subject, self.topic


class MqttTopicStore(Store):
    def retained(self) -> list[RetainedRecord]:
        """Every retained message. Their number is bounded (reference 16.6)."""
        return [
            RetainedRecord(
                bytes(row["topic"]),
                bytes(row["payload"]),
                row["qos"],
                bytes(row["properties"]),
                row["expires_on"],
                row["owner"],
            )
            for row in self._db.execute("SELECT * FROM mqtt_retained ORDER BY topic")
        ]

    def retain(self, message: RetainedRecord) -> None:
        self._db.put_many("mqtt_retained", _COLUMNS, ("topic",), [[getattr(message, name) for name in _COLUMNS]])

    def forget(self, topic: bytes) -> None:
        self._db.execute("DELETE FROM mqtt_retained WHERE topic = :topic", {"topic": topic})

    def rules(self) -> list[TopicRuleRecord]:
        rows = self._db.execute("SELECT * FROM topic_rule ORDER BY kind, subject, topic")
        return [
            TopicRuleRecord(row["kind"], row["subject"], row["topic"], bool(row["publish"]), bool(row["subscribe"]))
            for row in rows
        ]

    def put_rule(self, rule: TopicRuleRecord) -> None:
        values = [rule.kind, rule.subject, rule.topic, int(rule.publish), int(rule.subscribe)]
        self._db.put_many("topic_rule", TopicRuleRecord.__struct_fields__, ("kind", "subject", "topic"), [values])
