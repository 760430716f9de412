"""The port to the models of conditions with a `transformer` (reference 12.6)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from broker.rules.rule import Transformer
from broker.rules.view import Value
from storage.database import Transaction
from storage.keys import DeviceKey, RuleKey
from storage.rules import RuleRecord


@dataclass(frozen=True, slots=True)
class ModelWarning:
    """A model of a rule that is not ready, and why."""

    model_id: str
    messages: tuple[str, ...]


class Transformers(Protocol):
    def output(self, rule: RuleKey, condition: int, device: DeviceKey) -> Value | None:
        """What the model of a condition says now, without waiting; None while it is not ready."""

    def warnings(self, rule: RuleKey, transformers: Sequence[Transformer]) -> Sequence[ModelWarning]:
        """The models of a rule that are not ready."""

    def put(self, tx: Transaction, rule: RuleRecord, transformers: Sequence[Transformer]) -> None:
        """Make and remove models in the transaction that makes, changes or removes the rule."""

    def changed(self, rule: RuleKey, transformers: Sequence[Transformer]) -> None:
        """That transaction is durable."""


class NoTransformers:
    """No models: conditions with a `transformer` never hold, and each rule with one says so."""

    def output(self, rule: RuleKey, condition: int, device: DeviceKey) -> Value | None:  # noqa: ARG002
        return None

    def warnings(self, rule: RuleKey, transformers: Sequence[Transformer]) -> Sequence[ModelWarning]:  # noqa: ARG002
        return [ModelWarning("", ("models are not available",))] if transformers else []

    def put(self, tx: Transaction, rule: RuleRecord, transformers: Sequence[Transformer]) -> None:
        pass

    def changed(self, rule: RuleKey, transformers: Sequence[Transformer]) -> None:
        pass
