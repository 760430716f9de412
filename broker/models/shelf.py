"""The models that can answer, in memory: rules ask them without waiting."""

from collections.abc import Iterable, Mapping

import msgspec

from broker.changes import Changes
from broker.models.definition import Definition, ModelStatus, ModelType, Port, as_value
from broker.models.state import Learned
from storage.keys import DeviceKey
from storage.models import ModelRecord

Value = bool | int | float
#: The rule, its condition and the device of a model that was made for a rule.
RulePlace = tuple[int, int, DeviceKey]


class ModelAnswer(msgspec.Struct, frozen=True):
    value: Value
    confidence: float


class ReadyModel(msgspec.Struct, frozen=True):
    """A model with its trained state."""

    kind: ModelType
    definition: Definition
    output_type: str
    learned: Learned

    def answer(self, values: Mapping[str, float], at_ms: int) -> ModelAnswer | None:
        """None when an anomaly is looked for in a value that is not given."""
        learned = self.learned
        if self.kind is ModelType.PREDICTION:
            return ModelAnswer(as_value(learned.estimate(values, at_ms), self.output_type), learned.confidence)
        actual = values.get(self.definition.target.name)
        if actual is None:
            return None
        found = learned.is_anomaly(values, actual, at_ms, self.definition.sensitivity)
        return ModelAnswer(found, learned.confidence)


def ready_model(record: ModelRecord) -> ReadyModel | None:
    """The model of a record; None unless it is ready."""
    if record.status != ModelStatus.READY or record.state is None:
        return None
    outputs = msgspec.json.decode(record.outputs, type=list[Port])
    return ReadyModel(
        ModelType(record.type),
        msgspec.json.decode(record.definition, type=Definition),
        outputs[0].type,
        msgspec.json.decode(record.state, type=Learned),
    )


def _place_of(record: ModelRecord) -> RulePlace | None:
    if record.rule is None or record.condition is None or record.rule_device is None:
        return None
    return record.rule, record.condition, record.rule_device


class OfRule(msgspec.Struct, frozen=True):
    """A model that was made for a rule: its id, the name of its only input, and why it is not ready, if it is not."""

    id: str
    input: str
    reason: str

    @classmethod
    def of(cls, record: ModelRecord) -> "OfRule":
        target = msgspec.json.decode(record.definition, type=Definition).target
        return cls(record.id, target.name, record.reason)


class Shelf:
    def __init__(self) -> None:
        #: A reader of all models for `replace` reads them again if one was put or dropped during the read.
        self.changes = Changes()
        self._ready: dict[str, ReadyModel] = {}
        self._of_rules: dict[RulePlace, OfRule] = {}

    def __len__(self) -> int:
        return len(self._ready)

    def get(self, model_id: str) -> ReadyModel | None:
        return self._ready.get(model_id)

    def of_rule(self, place: RulePlace) -> OfRule | None:
        return self._of_rules.get(place)

    def replace(self, ready: Iterable[ModelRecord], of_rules: Iterable[ModelRecord]) -> None:
        """Hold these models and no others."""
        self._ready = {record.id: model for record in ready if (model := ready_model(record)) is not None}
        self._of_rules = {place: OfRule.of(record) for record in of_rules if (place := _place_of(record)) is not None}

    def changed(self, id_: str, record: ModelRecord | None) -> None:
        """A model was made or changed; None: it was removed."""
        if record is None:
            self._drop(id_)
        else:
            self.put(record)

    def put(self, record: ModelRecord) -> None:
        self.changes.note()
        model = ready_model(record)
        if model is None:
            self._ready.pop(record.id, None)
        else:
            self._ready[record.id] = model
        if (place := _place_of(record)) is not None:
            self._of_rules[place] = OfRule.of(record)

    def _drop(self, model_id: str) -> None:
        self.changes.note()
        self._ready.pop(model_id, None)

    def drop_device(self, did: str) -> None:
        """Models of this device answer no more until they are judged again."""
        self.changes.note()
        gone = [id_ for id_, one in self._ready.items() if any(src.did == did for src in one.definition.all_sources)]
        for id_ in gone:
            del self._ready[id_]
