"""Models that predict values or find anomalies (reference 12.6). The caller holds the transaction."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from storage.keys import ApplicationKey, DeviceKey, Milliseconds, UserKey
from storage.sql import Store, record_values, sure


class ModelRecord(msgspec.Struct, frozen=True):
    """A row of `model`. `rule`, `condition` and `rule_device` are what the model was made for; None for a model of a
    user."""

    key: int
    id: str
    user: UserKey
    application: ApplicationKey
    type: str
    definition: str
    inputs: str
    outputs: str
    rule: int | None
    condition: int | None
    rule_device: DeviceKey | None
    status: str
    reason: str
    created_on: Milliseconds
    next_training_on: Milliseconds
    trained_on: Milliseconds | None = None
    state: str | None = None
    # Of the tables of users and applications; not written.
    user_id: str = ""
    application_id: str = ""


_WRITTEN: Final = (
    *("id", "user", "application", "type", "definition", "inputs", "outputs", "rule", "condition", "rule_device"),
    *("status", "reason", "created_on", "next_training_on", "trained_on", "state"),
)
_MODELS: Final = (
    "SELECT m.*, u.id AS user_id, a.id AS application_id FROM model AS m JOIN user AS u ON u.key = m.user"
    " JOIN application AS a ON a.key = m.application WHERE "
)


class ModelStore(Store):
    def add(self, model: ModelRecord, devices: Iterable[DeviceKey]) -> ModelRecord:
        """Add a model of these devices' values; return it with its key."""
        key = int(sure(self._insert("model", record_values(model, _WRITTEN), "RETURNING key").one())["key"])
        for device in devices:
            self._insert("model_device", {"device": device, "model": key}, "ON CONFLICT (device, model) DO NOTHING")
        found = self._one("m.key = :key", {"key": key})
        assert found is not None, "it was just added"  # noqa: S101 - an invariant of the store
        return found

    def set_training(
        self, key: int, *, status: str, reason: str, next_training_on: int, trained_on: int | None, state: str | None
    ) -> None:
        """Write how training came out. `state` None keeps the numbers of the training before."""
        self._db.execute(
            "UPDATE model SET status = :status, reason = :reason, next_training_on = :next,"
            " trained_on = coalesce(:trained, trained_on), state = coalesce(:state, state) WHERE key = :key",
            {
                "key": key,
                "status": status,
                "reason": reason,
                "next": next_training_on,
                "trained": trained_on,
                "state": state,
            },
        )

    def set_status(self, key: int, status: str, reason: str) -> None:
        self._db.execute(
            "UPDATE model SET status = :status, reason = :reason WHERE key = :key",
            {"key": key, "status": status, "reason": reason},
        )

    def remove(self, key: int) -> None:
        self._db.execute("DELETE FROM model_device WHERE model = :key", {"key": key})
        self._db.execute("DELETE FROM model WHERE key = :key", {"key": key})

    def remove_of_rule(self, rule: int) -> None:
        self._db.execute(
            "DELETE FROM model_device WHERE model IN (SELECT key FROM model WHERE rule = :rule)", {"rule": rule}
        )
        self._db.execute("DELETE FROM model WHERE rule = :rule", {"rule": rule})

    def by_id(self, id_: str) -> ModelRecord | None:
        return self._one("m.id = :id", {"id": id_})

    def of_user(self, user: UserKey) -> list[ModelRecord]:
        """All models of a user, oldest first. Their number is bounded (reference 12.6)."""
        return self._all("m.user = :user ORDER BY m.key", {"user": user})

    def of_application(self, application: ApplicationKey) -> list[ModelRecord]:
        """The models that an application made, of every user, also those of its rules."""
        return self._all("m.application = :application ORDER BY m.key", {"application": application})

    def of_device(self, device: DeviceKey) -> list[ModelRecord]:
        return self._all(
            "m.key IN (SELECT model FROM model_device WHERE device = :device) ORDER BY m.key", {"device": device}
        )

    def count(self, user: UserKey, *, of_rules: bool) -> int:
        """How many models a user has that were made for rules, or that were not."""
        row = self._db.execute(
            f"SELECT count(*) AS n FROM model WHERE user = :user AND rule IS {'NOT ' if of_rules else ''}NULL",  # noqa: S608 - constants
            {"user": user},
        ).one()
        return int(sure(row)["n"])

    def due(self, now_ms: int, *, latest_ms: int) -> list[ModelRecord]:
        """The model of each user whose training is due, the longest waiting first. A training is due, too, when it was
        set for later than `latest_ms`: the clock was wrong then."""
        return self._all(
            "m.key IN (SELECT key FROM (SELECT key, row_number() OVER"
            " (PARTITION BY user ORDER BY next_training_on, key) AS turn FROM model"
            " WHERE next_training_on <= :now OR next_training_on > :latest) AS waiting WHERE turn = 1)"
            " ORDER BY m.next_training_on, m.key",
            {"now": now_ms, "latest": latest_ms},
        )

    def all_ready(self) -> list[ModelRecord]:
        return self._all("m.status = 'ready' ORDER BY m.key", {})

    def of_rule(self, rule: int) -> list[ModelRecord]:
        return self._all("m.rule = :rule ORDER BY m.key", {"rule": rule})

    def ids_of_rule(self, rule: int) -> dict[tuple[int | None, int | None], str]:
        """The ids of a rule's models by condition and device."""
        rows = self._db.execute("SELECT condition, rule_device, id FROM model WHERE rule = :rule", {"rule": rule})
        return {(row["condition"], row["rule_device"]): row["id"] for row in rows}

    def of_rules(self) -> list[ModelRecord]:
        """Every model that was made for a rule."""
        return self._all("m.rule IS NOT NULL ORDER BY m.key", {})

    def _one(self, where: str, given: Mapping[str, object]) -> ModelRecord | None:
        row = self._db.execute(_MODELS + where, given).one()
        return _model(row) if row else None

    def _all(self, where: str, given: Mapping[str, object]) -> list[ModelRecord]:
        return [_model(row) for row in self._db.execute(_MODELS + where, given)]


def _model(row: Mapping[str, Any]) -> ModelRecord:
    return ModelRecord(**{name: row[name] for name in ModelRecord.__struct_fields__})
