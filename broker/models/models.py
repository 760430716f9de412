"""The calls on models, and their use by rules (reference 12.6)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from broker.accounts.applications import require_application
from broker.accounts.issuance import Issuance
from broker.accounts.permissions import Permission, Permissions, Reach
from broker.accounts.tokens import Caller
from broker.accounts.users import Users, user_in_body
from broker.clock import Clock
from broker.cluster.kinds import MODEL, RULE_MODELS
from broker.devices.registry import Device, Devices
from broker.errors import (
    REQUIRED,
    Conflict,
    Finding,
    NotFound,
    PermissionDenied,
    UserNotFound,
    ValidationFailed,
    choice,
    invalid,
)
from broker.ids import new_id
from broker.models.definition import (
    Definition,
    ModelSource,
    ModelStatus,
    ModelType,
    Port,
    check_sources,
    ports,
    read_definition,
)
from broker.models.learner import Learner, LearningNotInstalled
from broker.models.series import learnable_number
from broker.models.shelf import ModelAnswer, Shelf, Value, ready_model
from broker.models.training import IS_TRAINING, Training
from broker.trace.audit import AuditEvent, note
from config.limits import MODEL_SENSITIVITY, MODELS_OF_RULES, MODELS_OF_USER
from storage.database import Database
from storage.keys import ApplicationKey, DeviceKey, Milliseconds, RuleKey, UserKey
from storage.models import ModelRecord
from storage.records import ApplicationRecord, UserRecord
from storage.transaction import Transaction

TOO_MANY_MODELS: Final = f"A user has at most {MODELS_OF_USER} models"
TOO_MANY_OF_RULES: Final = f"The rules of a user have at most {MODELS_OF_RULES} models"
OF_A_RULE: Final = "Model belongs to a rule"
NOT_READY: Final = "Model is not ready"

_encode = msgspec.json.Encoder().encode


class Model(msgspec.Struct, frozen=True):
    """A model as it is shown."""

    record: ModelRecord
    definition: Definition
    inputs: Sequence[Port]
    outputs: Sequence[Port]


class RuleModel(msgspec.Struct, frozen=True):
    """A model that a rule needs: for one condition, and the device whose field it looks at.

    `ahead_seconds` for a prediction, `sensitivity` for an anomaly.
    """

    condition: int
    device: Device
    field: str
    kind: ModelType
    ahead_seconds: int | None = None
    sensitivity: float | None = None


@dataclass(slots=True, eq=False, repr=False)
class Models:
    _database: Database
    _clock: Clock
    _users: Users
    _permissions: Permissions
    _devices: Devices
    _training: Training
    _learner: Learner
    _shelf: Shelf

    # Calls

    async def create(self, caller: Caller, members: Mapping[str, Any]) -> Model:
        """Make a model; its training begins at once.

        Raises ValidationFailed with all findings; PermissionDenied for a user or a device that the caller may not read;
        Conflict when the user has too many models; LearningNotInstalled.
        """
        findings: list[Finding] = []
        user = await user_in_body(self._users, self._permissions, caller, members.get("uid"), findings)
        read = read_definition(members, findings)
        if user is None:
            raise ValidationFailed(tuple(findings))
        devices = {} if read is None else await self._devices.find_all(read[1].dids)
        reach = await self._permissions.reach(caller)
        # Of a device that the caller may not read, nothing is told but that.
        refused = [id_ for id_, one in devices.items() if one is not None and not _may_read(reach, user, one)]
        if read is not None:
            findings += check_sources(read[1], {id_: one for id_, one in devices.items() if id_ not in refused})
        if findings:
            raise ValidationFailed(tuple(findings))
        if refused or read is None:
            raise PermissionDenied(f"READ on device {refused[0]}")
        if not self._learner.is_installed:
            raise LearningNotInstalled
        kind, definition = read
        record = _record(user, caller.application or ApplicationKey(0), kind, definition, devices, self._clock.now_ms())
        keys = [one.key for one in devices.values() if one is not None]

        def add(tx: Transaction) -> ModelRecord:
            if tx.accounts.user(user) is None:  # deleted since
                raise UserNotFound
            require_application(tx, record.application)
            if tx.models.count(user, of_rules=False) >= MODELS_OF_USER:
                raise Conflict(TOO_MANY_MODELS)
            added = tx.models.add(record, keys)
            _note(tx, AuditEvent.MODEL_CREATED, added, record.created_on)
            tx.tell(MODEL, added.id)
            return added

        return _shown(await self._database.write(add))

    async def find(self, caller: Caller, model_id: str) -> Model:
        """A model, for a caller who acts for its user and may read its sources.

        Sources that the user does not have any more do not count. Raises NotFound, PermissionDenied.
        """
        record = await self._database.read(lambda tx: tx.models.by_id(model_id))
        if record is None:
            raise NotFound
        model = _shown(await self._training.checked(record))
        if missing := self._missing(
            await self._permissions.reach(caller), model, await self._devices.find_all(model.definition.dids)
        ):
            raise PermissionDenied(missing)
        return model

    async def page(self, caller: Caller, uid: str | None, *, offset: int, count: int) -> tuple[list[Model], int]:
        """A page of a user's models that the caller may read, oldest first, and their number.

        Raises UserNotFound, PermissionDenied; ValidationFailed when an application does not say whose.
        """
        if uid is None and caller.user is None:
            raise ValidationFailed.of("uid", REQUIRED)
        user = caller.user if uid is None else (await self._users.find(uid, caller)).key
        if user is None:
            raise PermissionDenied("access to this user")
        await self._permissions.require_user(caller, user)
        reach = await self._permissions.reach(caller)
        readable = []
        for record in await self._database.read(lambda tx: tx.models.of_user(user)):
            model = _shown(await self._training.checked(record))
            if not self._missing(reach, model, await self._devices.find_all(model.definition.dids)):
                readable.append(model)
        return readable[offset : offset + count], len(readable)

    async def remove(self, model: Model) -> None:
        """Raises Conflict for a model of a rule, which goes with its rule."""
        if model.record.rule is not None:
            raise Conflict(OF_A_RULE)
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            tx.models.remove(model.record.key)
            _note(tx, AuditEvent.MODEL_REMOVED, model.record, now_ms)
            tx.tell(MODEL, model.record.id)

        await self._database.write(work)

    def end_all_of(self, issuance: Issuance, user: UserRecord) -> Sequence[str]:
        """Remove a user's models in the caller's transaction (`broker/accounts/claims.py: Ender`)."""
        ended = self._end(issuance, issuance.tx.models.of_user(user.key))
        return [f"{model.type.lower()} {model.id}" for model in ended]

    def end_all_of_application(self, issuance: Issuance, application: ApplicationRecord) -> None:
        """End the application's models that belong to no rule. A rule ends with its models
        (`broker/accounts/application_ends.py: Ender`)."""
        self._end(issuance, issuance.tx.models.of_application(application.key))

    def _end(self, issuance: Issuance, models: Sequence[ModelRecord]) -> list[ModelRecord]:
        ended = [model for model in models if model.rule is None]
        for model in ended:
            issuance.tx.models.remove(model.key)
            _note(issuance.tx, AuditEvent.MODEL_REMOVED, model, issuance.now_ms)
            issuance.tx.tell(MODEL, model.id)
        return ended

    def predict(self, model: Model, inputs: object) -> ModelAnswer:
        """The model's answer to these inputs: a list of `{name, value}`. An input that is missing counts as its mean.

        Raises ValidationFailed with all findings; Conflict when the model is not ready.
        """
        values = _values(model, inputs)
        ready = ready_model(model.record)
        if ready is None:
            raise Conflict(f"{NOT_READY}: {model.record.reason}")
        answer = ready.answer(values, self._clock.now_ms())
        if answer is None:
            raise ValidationFailed.of("inputs", REQUIRED)
        return answer

    # Rules

    def create_for_rule(
        self, tx: Transaction, rule: RuleKey, user: UserKey, application: ApplicationKey, wanted: Sequence[RuleModel]
    ) -> None:
        """Make the missing models of a rule and remove the ones that it does not need any more, in a transaction.

        Raises LearningNotInstalled; Conflict when the user's rules have too many models.
        """
        wanted_places = {(one.condition, one.device.key) for one in wanted}
        known = set()
        for model in tx.models.of_rule(rule):
            place = (model.condition, model.rule_device)
            if place in wanted_places:
                known.add(place)
            else:
                tx.models.remove(model.key)
                tx.tell(RULE_MODELS, rule)
        missing = [one for one in wanted if (one.condition, one.device.key) not in known]
        if missing and not self._learner.is_installed:
            raise LearningNotInstalled
        if missing and tx.models.count(user, of_rules=True) + len(missing) > MODELS_OF_RULES:
            raise Conflict(TOO_MANY_OF_RULES)
        now_ms = self._clock.now_ms()
        for one in missing:
            source, device = ModelSource(one.device.id, one.field), one.device
            ahead = one.ahead_seconds if one.kind is ModelType.PREDICTION else None
            sensitivity = MODEL_SENSITIVITY if one.sensitivity is None else one.sensitivity
            definition = Definition((source,), source, ahead, sensitivity)
            record = _record(user, application, one.kind, definition, {device.id: device}, now_ms)
            of_rule = replace(record, rule=rule, condition=one.condition, rule_device=device.key)
            tx.models.add(of_rule, [device.key])
        if missing:
            tx.tell(RULE_MODELS, rule)

    def delete_for_rule(self, tx: Transaction, rule: RuleKey) -> None:
        """Remove the models of a rule in the transaction that changes or removes it."""
        if tx.models.ids_of_rule(rule):
            tx.models.remove_of_rule(rule)
            tx.tell(RULE_MODELS, rule)

    def output(self, model_id: str, values: Mapping[str, Value], at_ms: Milliseconds | None = None) -> Value | None:
        """The answer of a model, as it is now, to the values of a time, by the names of its inputs, without waiting.

        None: it is not ready. Without a time, the values are of now.
        """
        ready = self._shelf.get(model_id)
        if ready is None:
            return None
        numbers = {name: number for name, value in values.items() if (number := learnable_number(value)) is not None}
        answer = ready.answer(numbers, self._clock.now_ms() if at_ms is None else at_ms)
        return None if answer is None else answer.value

    def output_for_rule(
        self, rule: int, condition: int, device: DeviceKey, value: Value, at_ms: Milliseconds | None = None
    ) -> Value | None:
        """The answer of a rule condition's model to a value of the device's field at a time, without waiting; None:
        there is no model, or it is not ready."""
        found = self._shelf.of_rule((rule, condition, device))
        return None if found is None else self.output(found.id, {found.input: value}, at_ms)

    def waiting(self, model_id: str, rule: int, condition: int, device: DeviceKey) -> str | None:
        """Why the model of a rule's condition is not ready (warning 6316); None when it is."""
        if self._shelf.get(model_id) is not None:
            return None
        found = self._shelf.of_rule((rule, condition, device))
        return (found.reason if found is not None and found.id == model_id else "") or IS_TRAINING

    # Checks

    def _missing(self, reach: Reach, model: Model, devices: Mapping[str, Device | None]) -> str:
        """The permissions that the caller lacks for a model, as a text; empty if none is missing."""
        user = model.record.user
        if not reach.covers_user(user):
            return "access to this user"
        for id_, device in devices.items():
            if device is not None and device.is_held_by(user) and not _may_read(reach, user, device):
                return f"READ on device {id_}"
        return ""


def _note(tx: Transaction, event: AuditEvent, model: ModelRecord, now_ms: int) -> None:
    note(tx, event, f"model {model.id}", now_ms=now_ms, owner=model.user_id)


def _may_read(reach: Reach, user: UserKey, device: Device) -> bool:
    return device.is_held_by(user) and reach.allows_type(user, device.type.record, Permission.READ)


def _record(
    user: UserKey,
    application: ApplicationKey,
    kind: ModelType,
    definition: Definition,
    devices: Mapping[str, Device | None],
    now_ms: Milliseconds,
) -> ModelRecord:
    inputs, outputs = ports(kind, definition, devices)
    return ModelRecord(
        key=0,
        id=new_id(),
        user=user,
        application=application,
        type=kind,
        definition=_encode(definition).decode(),
        inputs=_encode(inputs).decode(),
        outputs=_encode(outputs).decode(),
        rule=None,
        condition=None,
        rule_device=None,
        status=ModelStatus.TRAINING,
        reason=IS_TRAINING,
        created_on=now_ms,
        next_training_on=now_ms,
    )


def _shown(record: ModelRecord) -> Model:
    return Model(
        record,
        msgspec.json.decode(record.definition, type=Definition),
        msgspec.json.decode(record.inputs, type=list[Port]),
        msgspec.json.decode(record.outputs, type=list[Port]),
    )


def _values(model: Model, inputs: object) -> dict[str, float]:
    """The numbers of the inputs by their names. Raises ValidationFailed with all findings."""
    if not isinstance(inputs, list):
        raise ValidationFailed.of("inputs", REQUIRED if inputs is None else invalid("must be a list"))
    known = {one.name for one in model.inputs}
    findings: list[Finding] = []
    values: dict[str, float] = {}
    for index, one in enumerate(inputs[: len(known) + 1]):
        name, value = (one.get("name"), one.get("value")) if isinstance(one, dict) else (None, None)
        if not isinstance(name, str) or name not in known or name in values:
            findings.append(
                Finding(
                    f"inputs.{index}.name",
                    (REQUIRED if name is None else invalid(choice(sorted(known - set(values)))),),
                )
            )
        elif (number := learnable_number(value)) is None:
            findings.append(
                Finding(
                    f"inputs.{index}.value",
                    (
                        REQUIRED
                        if value is None
                        else invalid("must be a number that can be learned from, or a Boolean"),
                    ),
                )
            )
        else:
            values[name] = number
    if findings:
        raise ValidationFailed(tuple(findings))
    return values
