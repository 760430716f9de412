"""A board as its read-only link shows it: values and charts, with the rights that its user has at each moment.

Whoever has the secret sees the titles, the names of the devices, values and times, and no ids. Several screens with one
link cost little more than one: the points of a chart are kept for half a minute.
"""

from collections import OrderedDict
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec

from broker.accounts.throttle import Throttle
from broker.boards.tiles import CHART, VALUE, Tile, tiles_in
from broker.clock import Clock
from broker.cluster.facts import FactLog
from broker.devices.registry import Device, Devices
from broker.errors import NotFound, TooManyAttempts, ValidationFailed
from broker.ids import is_id
from broker.limits.window import WINDOW_MS, Window
from broker.messages.analytics import Analytics
from broker.messages.folds import Fields
from broker.messages.intervals import Interval, LocalInterval
from broker.messages.snapshots import Snapshots
from broker.secrets import token_hash
from broker.trace.origin import address_key, set_actor
from broker.zones import zone_named
from config.limits import BOARD_CHARTS_KEPT, BOARD_LINK_MISSES, BOARD_LINK_WINDOW_SECONDS, BOARD_LOOKS
from storage.boards import BoardRecord
from storage.database import Database
from storage.keys import DeviceKey, Milliseconds
from storage.transaction import Transaction

_CHART_MS: Final = 30_000
_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 86_400_000
_REMEMBERED: Final = 10_000
#: Range of a chart: the interval of its points, and its length in ms.
_SPANS: Final = {
    "hour": (Interval.MINUTE, 60 * _MINUTE_MS),
    "day": (Interval.TEN_MINUTES, _DAY_MS),
    "month": (Interval.DAY, 31 * _DAY_MS),
    "year": (Interval.MONTH, 365 * _DAY_MS),
}

_OF_DAYS: Final = {Interval.DAY, Interval.MONTH}
_UTC: Final = zone_named("UTC")


class Point(msgspec.Struct, frozen=True):
    """A point of a chart: the time in ms, the mean, the lowest, the highest and the number of values."""

    t: int
    v: float
    low: float
    high: float
    count: int


class ShownTile(msgspec.Struct, frozen=True, rename="camel"):
    """A tile to show. `device` is empty when the user may not see the device any more, or it was deleted."""

    kind: str
    title: str
    device: str
    field: str
    unit: str = ""
    range: str = ""
    wide: bool = False
    value: Any = None
    ts: int | None = None
    points: tuple[Point, ...] = ()


class ShownBoard(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    tiles: tuple[ShownTile, ...]


class Kiosk:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        devices: Devices,
        snapshots: Snapshots,
        analytics: Analytics,
        peers: FactLog | None = None,
    ) -> None:
        """`peers`: what other nodes have ended; None: there are none."""
        self._peers = peers
        self._database = database
        self._clock = clock
        self._devices = devices
        self._snapshots = snapshots
        self._analytics = analytics
        self._guesses = Throttle(clock, misses=BOARD_LINK_MISSES, window_seconds=BOARD_LINK_WINDOW_SECONDS)
        self._looks: OrderedDict[int, Window] = OrderedDict()
        self._charts: OrderedDict[tuple[DeviceKey, str, str, str], tuple[int, tuple[Point, ...]]] = OrderedDict()

    async def look(self, secret: str, *, address: str, with_charts: bool, zone: str = "UTC") -> ShownBoard:
        """The board of a link, now.

        Args:
            secret: of the link.
            address: the IP address of the screen.
            with_charts: whether charts come with their points.
            zone: the time zone of the screen, in which the days of charts begin; UTC for a name that is none.

        Raises:
            NotFound: there is no such link, it was revoked, it has expired, or its user is gone or disabled.
            TooManyAttempts: too many wrong secrets from this address, or too many looks at the board.
        """
        self._guesses.check(address_key(address))
        board = await self._board(secret)
        if board is None:
            self._guesses.missed(address_key(address))
            raise NotFound
        self._count(board)
        set_actor(f"user {board.user_id}")
        if self._peers is not None:  # a share may have ended on another node
            await self._peers.catch_up()
        tiles = [one for one in tiles_in(board.tiles) if one.kind in {CHART, VALUE}]
        found = await self._devices.find_all({one.did for one in tiles})
        seen = {id_: one for id_, one in found.items() if one is not None and one.is_held_by(board.user)}
        fields = await self._snapshots.of_all([device.key for device in seen.values()])
        days_of = _zone(zone) if with_charts else None
        shown = [await self._shown(one, seen.get(one.did), fields, days_of) for one in tiles]
        return ShownBoard(board.name, tuple(shown))

    def _count(self, board: BoardRecord) -> None:
        """Count a look at a board. Raises TooManyAttempts; then it is not counted."""
        now_ms = self._clock.steady_ms()
        window = self._looks.setdefault(board.key, Window())
        self._looks.move_to_end(board.key)
        if len(self._looks) > _REMEMBERED:
            self._looks.popitem(last=False)
        if not window.has_room(BOARD_LOOKS, now_ms):
            wait_ms = (window.oldest(now_ms) or 0) + WINDOW_MS - now_ms
            raise TooManyAttempts(-(-wait_ms // 1000))
        window.add(now_ms)

    async def _board(self, secret: str) -> BoardRecord | None:
        half = len(secret) // 2
        if not (is_id(secret[:half]) and is_id(secret[half:])):
            return None
        hash_, now_ms = token_hash(secret), self._clock.now_ms()

        def work(tx: Transaction) -> BoardRecord | None:
            board = tx.boards.by_link(hash_)
            user = None if board is None else tx.accounts.user(board.user)
            if board is None or user is None or user.disabled_on is not None:
                return None
            return None if board.link_expires_on is not None and board.link_expires_on <= now_ms else board

        return await self._database.look_up(work)

    async def _shown(
        self, tile: Tile, device: Device | None, fields: dict[DeviceKey, Fields], zone: ZoneInfo | None
    ) -> ShownTile:
        """`zone`: that of charts; None: without their points."""
        if device is None:
            return ShownTile(tile.kind, tile.title, "", tile.field, range=tile.range, wide=tile.wide)
        declared = device.manifest.manifest.field_at(tile.field)
        ts, _, value = fields[device.key].get(tile.field, (None, None, None))
        points = () if zone is None or tile.kind != CHART else await self._points(device, tile, zone)
        return ShownTile(
            tile.kind,
            tile.title,
            device.record.name,
            tile.field,
            unit=(declared.unit if declared is not None else None) or "",
            range=tile.range,
            wide=tile.wide,
            value=value,
            ts=ts,
            points=points,
        )

    async def _points(self, device: Device, tile: Tile, zone: ZoneInfo) -> tuple[Point, ...]:
        interval, length_ms = _SPANS[tile.range or "hour"]
        days_of = zone if interval in _OF_DAYS else _UTC
        key, now_ms = (device.key, tile.field, tile.range, days_of.key), self._clock.now_ms()
        known = self._charts.get(key)
        if known is not None and 0 <= now_ms - known[0] < _CHART_MS:
            return known[1]
        end = LocalInterval(interval, days_of).end_of(now_ms)
        start = Milliseconds(end - length_ms)
        try:
            answer = await self._analytics.histogram(
                device, tile.field, interval, start_ms=start, end_ms=end, zone=days_of
            )
        except ValidationFailed:  # the type has no such number any more
            return ()
        points = tuple(Point(at, one.mean, one.min, one.max, one.count) for at, one in answer.buckets)
        self._charts[key] = (now_ms, points)
        self._charts.move_to_end(key)
        while len(self._charts) > BOARD_CHARTS_KEPT:
            self._charts.popitem(last=False)
        return points


def _zone(name: str) -> ZoneInfo:
    try:
        return zone_named(name)
    except ValueError:
        return _UTC
