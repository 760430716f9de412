"""The table `topic_rules` of the provision file: who may use which open topics (reference 16.6)."""

from broker.facts import TopicRulesChanged
from broker.provisioning.document import TopicRuleEntry
from broker.provisioning.reading import EntryLocation
from broker.provisioning.report import compared
from broker.provisioning.run import ProvisioningRun
from storage.mqtt_topics import TopicRuleRecord


class TopicTables:
    def __init__(self, run: ProvisioningRun) -> None:
        self._run = run

    def put_rule(self, at: EntryLocation, entry: TopicRuleEntry) -> None:
        """A rule stands for the one with its subject and topic."""
        store = self._run.tx.mqtt_topics
        kind, subject, name = self._subject(at, entry)
        wanted = TopicRuleRecord(kind, subject, entry.topic, entry.publish, entry.subscribe)
        known = next((one for one in store.rules() if one.identity == wanted.identity), None)
        if wanted != known:
            store.put_rule(wanted)
            self._run.facts.append(TopicRulesChanged(tuple(store.rules())))
        if known is None:
            return self._run.created(at, wanted.identity, f"{entry.topic} of {name}")
        changes = compared(known, wanted, ("publish", "subscribe"))
        return self._run.found(at, wanted.identity, f"{entry.topic} of {name}", changes)

    def _subject(self, at: EntryLocation, entry: TopicRuleEntry) -> tuple[str, int, str]:
        given = {"device": entry.device, "device_type": entry.device_type, "user": entry.user}
        named = [(kind, text) for kind, text in given.items() if text is not None]
        if len(named) != 1:
            raise at.refusal("device", "needs one of device, device_type and user")
        ((kind, text),) = named
        if kind == "user":
            return kind, self._run.user_of(at, kind, text).key, text
        if kind == "device_type":
            return kind, self._run.type_of(at, kind, text).key, text
        return kind, self._run.device_of(at, kind, text).key, text
