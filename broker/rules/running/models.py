"""The models of conditions with a `transformer`, made and asked through the capability of models (reference 12.6)."""

from collections.abc import Callable, Iterator, Sequence
from math import ceil

import msgspec

from broker.devices.registry import device_in
from broker.models.definition import ModelType
from broker.models.models import Models, RuleModel
from broker.rules.language.rule import Transformer
from broker.rules.language.values import Value
from broker.rules.running.last_values import members_of
from storage.keys import DeviceKey, Milliseconds, RuleKey, UserKey
from storage.rules import RuleRecord
from storage.transaction import Transaction

_KINDS = {"prediction": ModelType.PREDICTION, "anomalyDetection": ModelType.ANOMALY}


class ModelWarning(msgspec.Struct, frozen=True):
    """A model of a rule that is not ready, and why."""

    model_id: str
    messages: tuple[str, ...]


class ConditionModels:
    def __init__(self, models: Models) -> None:
        self._models = models

    def output(
        self, rule: RuleKey, condition: int, device: DeviceKey, value: Value, at_ms: Milliseconds
    ) -> Value | None:
        """The answer of a condition's model, as it is now, to a value of its field; None: it is not ready.

        It does not wait, and any thread may call it.
        """
        if not isinstance(value, bool | int | float):
            return None
        return self._models.output_for_rule(rule, condition, device, value, at_ms)

    def warnings(
        self, tx: Transaction, rule: RuleKey, transformers: Sequence[Transformer]
    ) -> Callable[[], Sequence[ModelWarning]]:
        """Read which models a rule has. The result is a function that names, on the loop, the unready ones."""
        ids = tx.models.ids_of_rule(rule) if transformers else {}

        def waiting() -> list[ModelWarning]:
            found = []
            for one in transformers:
                if one.device is None:  # one for each device of the type: there may be many
                    continue
                id_ = ids.get((one.condition, one.device))
                if id_ and (reason := self._models.waiting(id_, rule, one.condition, one.device)) is not None:
                    found.append(ModelWarning(id_, (reason,)))
            return found

        return waiting

    def put(self, tx: Transaction, rule: RuleRecord, transformers: Sequence[Transformer]) -> None:
        """Make the models that the rule lacks, and remove the models that it needs no more. Raises DomainError."""
        if transformers:
            wanted = [model for one in transformers for model in _wanted(tx, rule.owner, one)]
            self._models.create_for_rule(tx, rule.key, rule.owner, rule.application, wanted)

    def remove(self, tx: Transaction, rule: RuleKey) -> None:
        """Remove the rule's models, in the transaction that removes the rule or changes its body."""
        self._models.delete_for_rule(tx, rule)


def _wanted(tx: Transaction, owner: UserKey, transformer: Transformer) -> Iterator[RuleModel]:
    """The models of a condition: one for its device, or for each of the user's devices of its type."""
    keys = [transformer.device] if transformer.device is not None else []
    if transformer.device_type is not None:
        keys += members_of(tx, owner, transformer.device_type)
    for key in keys:
        if (device := device_in(tx, tx.devices.device(key))) is not None:
            ahead = transformer.predict_in_seconds
            yield RuleModel(
                transformer.condition,
                device,
                transformer.field,
                _KINDS[transformer.kind],
                None if ahead is None else ceil(ahead),
                transformer.sensitivity,
            )
