"""Failures of connectors, for the developers of their types: a sentence for each device and kind of call.

Kept in memory, and written within seconds of a change, so that a restart forgets nothing that a person has seen. A
problem ends with the next call of its kind that succeeds, with the device's link, or after a week.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from typing import Final

import msgspec

from broker.clock import Clock
from broker.cluster import kinds
from broker.cluster.news import News
from broker.connectors.calls import LinkEndedError
from broker.connectors.hooks import AnswerNotReadError, PluginFailedError
from broker.connectors.oauth import AuthorizationRefusedError, OperatorFaultError, TokenRevokedError
from broker.connectors.port import ThirdPartyUnreachableError
from broker.connectors.sending import WaitedTooLongError
from broker.errors import DeviceNotFound, StorageUnavailable, TryLater
from config.limits import CONNECTOR_PROBLEMS
from storage.database import Database
from storage.keys import DeviceKey, DeviceTypeKey
from storage.sql import StoreError
from storage.transaction import Transaction

KEPT_MS: Final = 7 * 86_400_000
#: Stands for the connector itself: its notifications, and the linking of accounts, which any user's success proves.
NO_DEVICE: Final = DeviceKey(0)
_SENTENCE_CHARACTERS: Final = 300


class Doing(StrEnum):
    """Purpose of a call to the third party, or of one of its calls."""

    AUTHORIZATION = "authorization"
    FETCH = "fetch"
    NOTIFICATION = "notification"
    ACTION = "action"


class Problem(msgspec.Struct, array_like=True):
    """Times in ms. `times`: how often it failed since it last succeeded."""

    device: DeviceKey
    doing: Doing
    sentence: str
    first_on: int
    last_on: int
    times: int = 1


_decode = msgspec.json.Decoder(list[Problem]).decode


class Problems:
    def __init__(self, database: Database, news: News, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[DeviceTypeKey, dict[tuple[DeviceKey, Doing], Problem]] = {}
        #: By type and kind what this node has noted; None: it has ended.
        self._unsaved: dict[DeviceTypeKey, dict[tuple[DeviceKey, Doing], Problem | None]] = {}
        news.listen(kinds.CONNECTOR_PROBLEMS, self._heard)

    async def load(self) -> None:
        """Read what the last run has left. Raises StoreError."""
        for type_key, text in await self._database.read(lambda tx: tx.connectors.problems()):
            self._known[type_key] = _by_kind(text)

    def _heard(self, type_: DeviceTypeKey, text: str) -> None:
        """A node has stored what it has noted."""
        self._known[type_] = _applied(_by_kind(text), self._unsaved.get(type_, {}))

    def note(self, type_: DeviceTypeKey, device: DeviceKey, doing: Doing, sentence: str) -> None:
        """A call failed. The problem of its kind that was seen longest ago makes room for a new one.

        Of its kind: Actions, which every owner of a device can make fail, leave those of other calls alone.
        """
        known, now_ms = self._known.setdefault(type_, {}), self._clock.now_ms()
        former = known.pop((device, doing), None)  # the latest stand at the end
        first_on, times = (now_ms, 0) if former is None else (former.first_on, former.times)
        problem = Problem(device, doing, sentence[:_SENTENCE_CHARACTERS], first_on, now_ms, times + 1)
        known[device, doing] = problem
        _trim(known, doing)
        unsaved = self._unsaved.setdefault(type_, {})
        unsaved.pop((device, doing), None)  # as above
        unsaved[device, doing] = problem

    def note_error(self, type_: DeviceTypeKey, device: DeviceKey, doing: Doing, error: Exception) -> None:
        """Note the error that a call raised; errors that are no fault of the connector are ignored."""
        if (sentence := sentence_of(error)) is not None:
            self.note(type_, device, doing, sentence)

    def note_success(self, type_: DeviceTypeKey, device: DeviceKey, doing: Doing) -> None:
        if (known := self._known.get(type_)) and known.pop((device, doing), None) is not None:
            self._unsaved.setdefault(type_, {})[device, doing] = None

    def forget(self, device: DeviceKey) -> None:
        """Forget the failures of a device: its link was replaced or ended, or the device is deleted."""
        for type_ in self._known:
            for doing in Doing:
                self.note_success(type_, device, doing)

    def of(self, type_: DeviceTypeKey) -> list[Problem]:
        """Up to `CONNECTOR_PROBLEMS` problems of each kind, the latest first."""
        since_ms = self._clock.now_ms() - KEPT_MS
        return [one for one in reversed(self._known.get(type_, {}).values()) if one.last_on >= since_ms]

    async def save(self) -> None:
        """Write what has changed. Raises StoreError."""
        unsaved, self._unsaved = self._unsaved, {}
        if not unsaved:
            return
        since_ms = self._clock.now_ms() - KEPT_MS
        try:
            await self._database.write(partial(_store, unsaved, since_ms))
        except StoreError:
            for type_, noted in unsaved.items():
                self._unsaved[type_] = noted | self._unsaved.get(type_, {})
            raise


_Noted = Mapping[tuple[DeviceKey, Doing], Problem | None]


def _store(unsaved: Mapping[DeviceTypeKey, _Noted], since_ms: int, tx: Transaction) -> None:
    """Other nodes may have stored what they have noted."""
    texts = {}
    for type_, noted in unsaved.items():
        known = _applied(_by_kind(tx.connectors.problems_of(type_)), noted)
        texts[type_] = msgspec.json.encode([one for one in known.values() if one.last_on >= since_ms]).decode()
        tx.tell(kinds.CONNECTOR_PROBLEMS, type_)
    tx.connectors.put_problems(texts)


def _applied(known: dict[tuple[DeviceKey, Doing], Problem], noted: _Noted) -> dict[tuple[DeviceKey, Doing], Problem]:
    for kind, problem in noted.items():
        known.pop(kind, None)
        if problem is not None:
            known[kind] = problem
            _trim(known, problem.doing)
    return known


def _trim(known: dict[tuple[DeviceKey, Doing], Problem], doing: Doing) -> None:
    same = [key for key in known if key[1] is doing]
    if len(same) > CONNECTOR_PROBLEMS:
        del known[same[0]]


def _by_kind(text: str) -> dict[tuple[DeviceKey, Doing], Problem]:
    return {(one.device, one.doing): one for one in _decode(text)}


def sentence_of(error: Exception) -> str | None:
    """Why a call failed, for developers; None for errors that are no fault of the connector.

    What a plug-in says may have parts of a message or an answer in it: that is for the operator's log.
    """
    match error:
        case LinkEndedError() | DeviceNotFound():
            return None
        case OperatorFaultError():
            return f"The third party refuses the client of this connector: {error}."
        case AuthorizationRefusedError():
            return None if error.error == "access_denied" else f"The third party gave no access token: {error}."
        case TokenRevokedError():
            return "The third party has ended the authorization: the owner must link the device again."
        case ThirdPartyUnreachableError():
            return f"The third party cannot be reached: {error}."
        case AnswerNotReadError():
            return answered(error.status)
        case PluginFailedError():
            hook = str(error).partition(":")[0]
            return f"The connector's plug-in failed in its hook {hook}; the log of the operator has the reason."
        case WaitedTooLongError():
            return f"The Action was not sent: {error}."
        case TryLater():
            return f"A limit of the device or of its owner is reached: {error}."
        case StorageUnavailable() | StoreError():
            return "The service could not store what came."
    return f"The call ended with an error of the service ({type(error).__name__})."


def answered(status: int) -> str:
    return f"The third party answered {status}."
