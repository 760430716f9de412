"""Use of rate limits and quotas, and when each opens again, for the operator (reference 27.16)."""

from typing import Final

import msgspec

from broker.accounts.tokens import TokenKind
from broker.limits.allowance import UNLIMITED
from broker.limits.ledger import Ledger
from broker.limits.meters import Channel, Meters
from broker.limits.quotas import Quotas
from storage.database import Database
from storage.records import TallyRecord
from storage.transaction import Transaction

_CHANNELS: Final = frozenset(channel.value for channel in Channel)


class UsedLimit(msgspec.Struct, frozen=True):
    """A counter of the current day or month. `limit` -1 is unlimited, None is not known any more.

    `what` is a channel with its calls of the day, or a quota; `whose` is a word and a name. `opens_on` is when counting
    restarts, in milliseconds since the epoch.
    """

    what: str
    whose: str
    used: int
    limit: int | None
    opens_on: int

    @property
    def is_used_up(self) -> bool:
        return self.limit is not None and self.limit != UNLIMITED and self.used >= self.limit


class LimitsOverview:
    """Reads the counters as the ledger last wrote them: at most a second ago."""

    def __init__(self, database: Database, ledger: Ledger, meters: Meters, quotas: Quotas | None) -> None:
        self._database = database
        self._ledger = ledger
        self._meters = meters
        self._quotas = quotas

    async def used(self, *, limit: int) -> list[UsedLimit]:
        """Up to `limit` entries: used-up limits first, then the ones with the least left."""

        def work(tx: Transaction) -> list[UsedLimit]:
            return [found for record in self._ledger.current(tx) if (found := self._shown(tx, record)) is not None]

        found = await self._database.read(work)
        return sorted(found, key=_order)[:limit]

    def _shown(self, tx: Transaction, record: TallyRecord) -> UsedLimit | None:
        what, _, actor = record.name.partition(" ")
        kind, *keys = actor.split(" ")
        if not keys or not all(key.isdecimal() for key in keys):
            return None
        whose = _whose(tx, kind, [int(key) for key in keys])
        if whose is None:  # it was removed since
            return None
        if what in _CHANNELS:
            rate = self._meters.rate_named(record.name, Channel(what), TokenKind(kind))
            return UsedLimit(what, whose, record.used, None if rate is None else rate.day, record.until_ms)
        if what != "quota" or self._quotas is None:
            return None
        quota = f"messages of the {'month' if kind == 'organization' else 'day'}"
        return UsedLimit(quota, whose, record.used, self._quotas.limit_of(kind, int(keys[0])), record.until_ms)


def _whose(tx: Transaction, kind: str, keys: list[int]) -> str | None:
    match kind:
        case "organization":
            organization = tx.accounts.organization(keys[0])  # type: ignore[arg-type] # the name of a counter has keys
            return None if organization is None else f"organization {organization.name}"
        case "device":
            device = tx.devices.device(keys[0])  # type: ignore[arg-type]
            return None if device is None else f"device {device.name} ({device.id})"
        case "application":
            application = tx.accounts.application(keys[0])  # type: ignore[arg-type]
            return None if application is None else f"application {application.name}"
        case "user" if len(keys) == 2:
            application, user = tx.accounts.application(keys[0]), tx.accounts.user(keys[1])  # type: ignore[arg-type]
            return None if user is None else f"user {user.email} in {application.name if application else '?'}"
        case _:
            return None


def _order(found: UsedLimit) -> tuple[bool, float, str]:
    limited = found.limit is not None and found.limit > 0
    share = found.used / found.limit if limited and found.limit else 0.0
    return not found.is_used_up, -share, found.whose
