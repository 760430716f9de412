"""The port to the models of conditions with a `transformer` (reference 12.6)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from broker.rules.rule import Transformer
from broker.rules.view import Value
from storage.database import Transaction
from storage.keys import DeviceKey, Milliseconds, RuleKey
from storage.rules import RuleRecord

#: What `Transformers.output` is.
Output = Callable[[RuleKey, int, DeviceKey, Value, Milliseconds], Value | None]


@dataclass(frozen=True, slots=True)
class ModelWarning:
    """A model of a rule that is not ready, and why."""

    model_id: str
    messages: tuple[str, ...]


class Transformers(Protocol):
    def output(
        self, rule: RuleKey, condition: int, device: DeviceKey, value: Value, at_ms: Milliseconds
    ) -> Value | None:
        """What the model of a condition, as it is now, says to a value of its field at this time, without waiting; from
        any thread. None: it is not ready."""

    def warnings(
        self, tx: Transaction, rule: RuleKey, transformers: Sequence[Transformer]
    ) -> Callable[[], Sequence[ModelWarning]]:
        """Read which models a rule has. What is returned says, on the loop, which of them are not ready."""

    def put(self, tx: Transaction, rule: RuleRecord, transformers: Sequence[Transformer]) -> None:
        """Make the models that the rule does not have yet, and remove those that it needs no more.

        Raises DomainError.
        """

    def remove(self, tx: Transaction, rule: RuleKey) -> None:
        """Remove the rule's models, in the transaction that removes the rule or changes its body."""

    def changed(self, rule: RuleKey, transformers: Sequence[Transformer]) -> None:
        """A transaction with `put` or `remove` is durable; the rule has these conditions now, or none."""


def no_output(_rule: RuleKey, _condition: int, _device: DeviceKey, _value: Value, _at_ms: Milliseconds) -> Value | None:
    """Instead of `Transformers.output`, where models are not asked."""
    return None
