"""Trains models: at creation and every day, one at a time; what stops half-way is begun again (reference 12.6)."""

from collections.abc import Mapping
from typing import Final

import msgspec
import structlog
import trio
from msgspec.structs import replace

from broker.clock import Clock
from broker.cluster.kinds import MODEL, RULE_MODELS
from broker.cluster.news import News
from broker.devices.registry import Device, Devices
from broker.facts import DeviceDeleted, FactPhase, Router, SharesChanged
from broker.loops import Loop, Wakeup
from broker.models.definition import Definition, ModelStatus, ModelType, check_sources
from broker.models.learner import Learner, LearningFailed
from broker.models.series import LARGEST, SeriesHistory, read_series
from broker.models.shelf import Shelf
from broker.models.state import TrainingJob
from config.limits import MODEL_RETRY_SECONDS, MODEL_VALUES_MIN
from storage.database import Database
from storage.keys import DeviceKey, Milliseconds, RuleKey, UserKey
from storage.leases import Holder
from storage.models import ModelRecord
from storage.sql import StoreError
from storage.transaction import Transaction

IS_TRAINING: Final = "is training"
_DAY_MS: Final = 86_400_000
_HOUR_OF_TRAINING_MS: Final = 3 * 3_600_000  # `trainingCron`: at 03:00 GMT
_LOOK_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 5.0
_CHANGED_MAX: Final = 10_000
_log = structlog.get_logger(__name__)


class TrainingStatistics(msgspec.Struct, frozen=True):
    """`trained` and `failed` count since the start."""

    ready: int
    trained: int
    failed: int


def next_training(now_ms: int) -> Milliseconds:
    """The next 03:00 GMT."""
    return Milliseconds((now_ms - _HOUR_OF_TRAINING_MS) // _DAY_MS * _DAY_MS + _DAY_MS + _HOUR_OF_TRAINING_MS)


def _soon(record: ModelRecord, now_ms: int) -> Milliseconds:
    """The time of the next attempt for a model with too few values: ever later, at the latest 03:00 GMT."""
    wait_ms = max(MODEL_RETRY_SECONDS * 1000, now_ms - record.created_on)
    return min(Milliseconds(now_ms + wait_ms), next_training(now_ms))


def reason_against(definition: Definition, user: UserKey, devices: Mapping[str, Device | None]) -> str:
    """Why the user's sources cannot be used; empty when they can."""
    for did, device in devices.items():
        if device is not None and not device.is_held_by(user):
            return f'Device "{did}" is no longer shared'
    findings = check_sources(definition, devices)
    return findings[0].messages[0] if findings else ""


def _too_large(history: SeriesHistory, name: str) -> str:
    return (
        f"{history.beyond[name]} of {history.beyond[name] + len(history.series[name])} values of {name} are beyond"
        f" {LARGEST:g}, and nothing is learned from these"
    )


class Training:
    def __init__(
        self,
        database: Database,
        lease: Holder,
        clock: Clock,
        router: Router,
        news: News,
        devices: Devices,
        learner: Learner,
        shelf: Shelf,
    ) -> None:
        self._database = database
        self._lease = lease
        self._clock = clock
        self._devices = devices
        self._learner = learner
        self._shelf = shelf
        self._wakeup, self._changes = Wakeup(), Wakeup()
        self._changed: dict[DeviceKey, None] = {}
        self._is_stale = True
        self._turns: dict[UserKey, int] = {}  # by user: the turn that a model of the user had last
        self._trained = self._failed = 0
        router.subscribe(DeviceDeleted, self._deleted, FactPhase.STATE)
        router.subscribe(SharesChanged, self._shares_changed, FactPhase.STATE)
        news.listen(MODEL, shelf.changed)
        news.listen(MODEL, self._model_changed)
        news.listen(RULE_MODELS, self._rule_models_changed)
        self.train_forever = Loop(
            self.train, every=_LOOK_SECONDS, wakeup=self._wakeup, at_once=True, failure="models_not_trained"
        ).run

    # Facts

    def _model_changed(self, _id: str, record: ModelRecord | None) -> None:
        if record is not None and record.status == ModelStatus.TRAINING:
            self.wake()

    def wake(self) -> None:
        """Look for models that are due."""
        self._wakeup.set()

    def _rule_models_changed(self, _rule: RuleKey, _content: None) -> None:
        """Models of a rule were made or removed: all models are read again."""
        self._is_stale = True
        self._changes.set()
        self.wake()

    def _deleted(self, fact: DeviceDeleted) -> None:
        self._shelf.drop_device(fact.device_id)
        self._note(fact.device)

    def _shares_changed(self, fact: SharesChanged) -> None:
        if (device := self._devices.get_nowait(fact.device)) is not None:
            self._shelf.drop_device(device.id)
        self._note(fact.device)

    def _note(self, device: DeviceKey) -> None:
        """Models of this device answer again when they were judged."""
        if len(self._changed) < _CHANGED_MAX:
            self._changed[device] = None
        else:  # too many to remember one by one: all are read again
            self._is_stale = True
        self._changes.set()

    # Work

    async def check_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the models in memory up to date, concurrently with the training, which may take long."""
        await self.check()
        task_status.started()
        await Loop(self.check, wakeup=self._changes, failure="models_not_checked", retry_seconds=_RETRY_SECONDS).run()

    async def check(self) -> bool:
        """Read the models again if they are not known, or judge those of one device that changed; return whether more
        devices wait."""
        if self._is_stale:
            self._is_stale = False
            try:
                self._shelf.replace(*await self._shelf.changes.settled(self._read_all))
            except StoreError:
                self._is_stale = True
                raise
        if self._changed:
            device = next(iter(self._changed))
            del self._changed[device]
            try:
                for record in await self._database.read(lambda tx: tx.models.of_device(device)):
                    self._shelf.put(await self.checked(record))
            except StoreError:
                self._changed[device] = None
                raise
        return bool(self._changed)

    async def _read_all(self) -> tuple[list[ModelRecord], list[ModelRecord]]:
        """The ready models, and those of rules."""
        return await self._database.read(lambda tx: (tx.models.all_ready(), tx.models.of_rules()))

    async def train(self) -> bool:
        """Train the model that is due; return whether another one may be."""
        now_ms = self._clock.now_ms()
        due = await self._database.read(lambda tx: tx.models.due(now_ms, latest_ms=now_ms + _DAY_MS))
        if not due:
            return False
        # In turns: nobody waits for all models of another user.
        chosen = min(due, key=lambda one: self._turns.get(one.user, 0))
        users = {one.user for one in due}
        self._turns = {user: turn for user, turn in self._turns.items() if user in users}
        self._turns[chosen.user] = max(self._turns.values(), default=0) + 1
        await self._train(chosen, now_ms)
        return True

    async def checked(self, record: ModelRecord) -> ModelRecord:
        """The model as it is now: with the status `error` when a source cannot be used any more.

        A source that can be used again makes the model ready at its next training.
        """
        if record.status == ModelStatus.ERROR:
            return record
        definition = msgspec.json.decode(record.definition, type=Definition)
        reason = reason_against(definition, record.user, await self._devices.find_all(definition.dids))
        if not reason:
            return record
        wrong = replace(record, status=ModelStatus.ERROR, reason=reason)

        def work(tx: Transaction) -> None:
            tx.models.set_status(record.key, wrong.status, reason)
            tx.tell(MODEL, record.id)

        await self._database.write(work)
        return wrong

    async def _train(self, record: ModelRecord, now_ms: Milliseconds) -> None:
        """Train a model, and write how it came out."""
        try:
            trained = await self._trained_on_history(record, now_ms)
            self._trained += trained.status == ModelStatus.READY
        except LearningFailed as error:
            self._failed += 1
            _log.warning("model_not_trained", model=record.id, reason=str(error))
            trained = replace(
                record, status=ModelStatus.ERROR, reason=str(error), next_training_on=next_training(now_ms)
            )

        def work(tx: Transaction) -> None:
            if tx.models.by_id(record.id) is None:  # deleted since
                return
            tx.models.set_training(
                record.key,
                status=trained.status,
                reason=trained.reason,
                next_training_on=trained.next_training_on,
                trained_on=trained.trained_on,
                state=trained.state,
            )
            tx.tell(MODEL, record.id)

        await self._database.write_own(self._lease, work)
        now = await self._database.read(lambda tx: tx.models.by_id(record.id))
        if now is not None:
            await self.checked(now)  # a source may be gone

    async def _trained_on_history(self, record: ModelRecord, now_ms: Milliseconds) -> ModelRecord:
        """Raises LearningFailed."""
        definition = msgspec.json.decode(record.definition, type=Definition)
        devices = await self._devices.find_all(definition.dids)
        if reason := reason_against(definition, record.user, devices):
            raise LearningFailed(reason)
        known = {did: device for did, device in devices.items() if device is not None}
        history = await read_series(self._database, definition, known, now_ms)
        series, name = history.series, definition.target.name
        if len(series[name]) < MODEL_VALUES_MIN:
            reason = f"{IS_TRAINING}: {_too_large(history, name)}" if history.beyond[name] else IS_TRAINING
            return replace(record, status=ModelStatus.TRAINING, reason=reason, next_training_on=_soon(record, now_ms))
        for source, values in series.items():
            if not values and history.beyond[source]:
                raise LearningFailed(_too_large(history, source))
        if not self._learner.is_installed:
            raise LearningFailed("the extra learning is not installed")
        is_ahead = record.type == ModelType.PREDICTION
        inputs = definition.sources if is_ahead else [one for one in definition.sources if one != definition.target]
        ahead_ms = (definition.ahead_seconds or 0) * 1000 if is_ahead else 0
        wanted = {one.name: series[one.name] for one in (*inputs, definition.target)}
        learned = await self._learner(TrainingJob(name, [one.name for one in inputs], ahead_ms, wanted))
        if reason := reason_against(definition, record.user, await self._devices.find_all(definition.dids)):
            raise LearningFailed(reason)  # a source is gone since
        return replace(
            record,
            status=ModelStatus.READY,
            reason="",
            next_training_on=next_training(now_ms),
            trained_on=now_ms,
            state=msgspec.json.encode(learned).decode(),
        )

    def statistics(self) -> TrainingStatistics:
        return TrainingStatistics(len(self._shelf), self._trained, self._failed)
