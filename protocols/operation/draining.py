"""Draining: a node among several moves its connections to the others before it stops (reference 27.25).

It tells first: `/readyz` answers 503, so that balancers send nobody here any more, and it takes no more of the work
that one node does for all. After `cluster.drain_notice_seconds` it accepts no device, and ends its connections one
after the other within `cluster.drain_seconds`, each as its protocol says that the peer is to connect again. HTTP is
answered until it stops, so that balancers see one state.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec
import structlog
import trio

from broker.cluster.membership import NodeMembership
from broker.errors import DomainError
from broker.life import Life
from config.settings import Settings
from protocols.operation import systemd

#: How often it looks whether somebody is left, and whether another node still serves.
_LOOK_SECONDS: Final = 0.1
#: Of the stop that follows, beside the grace period of connections.
_STOP_SECONDS: Final = 30.0
_log = structlog.get_logger(__name__)


class ServesAlone(DomainError):
    status = 409
    template = (
        "No other node serves, so nobody would take the connections of this one: stop it as a daemon alone"
        " (systemctl stop trunkline)"
    )


class DrainPhase(Enum):
    SERVING = "serving"
    TELLING = "telling"
    MOVING = "moving"
    STOPPING = "stopping"


class DrainStanding(msgspec.Struct, frozen=True):
    """`connections`: how many are not moved yet. `seconds_left`: how long the phase lasts at most."""

    phase: DrainPhase
    connections: int
    seconds_left: float
    others: tuple[str, ...]
    #: Whether the command that is answered has begun it.
    is_new: bool = False


class Draining:
    """One for the daemon."""

    def __init__(self, life: Life, member: NodeMembership | None, settings: Callable[[], Settings]) -> None:
        """`member`: this node among several; None: the daemon serves alone. `settings`: as they are now."""
        self._life = life
        self._member = member
        self._settings = settings
        self._until = 0.0
        self.wanted = trio.Event()

    def begin(self) -> bool:
        """Have the daemon drain; False: no other node serves."""
        if self.wanted.is_set():
            return True
        if self._member is None or not self._member.others_that_serve():
            return False
        self._life.draining.set()
        self._member.drain()
        self._until = trio.current_time() + self._settings().cluster.drain_notice_seconds
        self.wanted.set()
        return True

    def standing(self) -> DrainStanding:
        if self._life.stopping.is_set():
            phase = DrainPhase.STOPPING
        elif self._life.moving.is_set():
            phase = DrainPhase.MOVING
        else:
            phase = DrainPhase.TELLING if self.wanted.is_set() else DrainPhase.SERVING
        others = () if self._member is None else self._member.others_that_serve()
        left = max(0.0, self._until - trio.current_time()) if self.wanted.is_set() else 0.0
        return DrainStanding(phase, self._not_moved(), round(left, 1), others)

    async def ask(self) -> DrainStanding:
        """Begin, for an operator, or say how far it is. Raises ServesAlone, StoreError."""
        if self._member is not None:
            await self._member.look()
        is_new = not self.wanted.is_set()
        if not self.begin():
            raise ServesAlone
        return msgspec.structs.replace(self.standing(), is_new=is_new)

    def _not_moved(self) -> int:
        return sum(count() for count in self._life.not_moved)

    async def run(self) -> None:
        """Return when the daemon is to stop. At once when no other node is left that could take its connections."""
        settings = self._settings()
        notice, moving = settings.cluster.drain_notice_seconds, settings.cluster.drain_seconds
        most = notice + moving + settings.grace_seconds + _STOP_SECONDS
        systemd.notify(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={round(most * 1_000_000)}\nSTATUS=Draining: tells balancers")
        _log.info("draining", connections=self._not_moved(), notice_seconds=notice, seconds=moving)
        await self._wait(notice, lambda: not self._has_others())
        if not self._has_others():
            _log.info("not_drained", reason="no other node serves any more")
            return
        systemd.notify("STATUS=Draining: moves its connections")
        self._life.move(moving)
        await self._wait(moving, lambda: not (self._not_moved() and self._has_others()))
        _log.info("drained", connections=self._not_moved())

    async def _wait(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Wait until it is over, for so long at most."""
        self._until = trio.current_time() + seconds
        with trio.move_on_after(seconds):
            while True:
                await trio.sleep(_LOOK_SECONDS)
                if is_over():
                    return

    def _has_others(self) -> bool:
        return self._member is not None and bool(self._member.others_that_serve())
