"""Messages and Actions as clients see them. Each protocol renders the members under its own names."""

import msgspec

from storage.keys import Milliseconds, Position


class Message(msgspec.Struct, frozen=True):
    """A normalised data message. `data` is compact JSON, `boid` the billing organization of the device type's owner."""

    position: Position
    mid: str
    sdid: str
    sdtid: str
    uid: str
    boid: str
    ts: Milliseconds
    cts: Milliseconds
    mv: int
    data: str


class Action(msgspec.Struct, frozen=True):
    """An Action message. `uid` is the owner of the destination device, `data` compact JSON `{"actions":[…]}`."""

    position: Position
    mid: str
    sdid: str
    ddid: str
    ddtid: str
    uid: str
    boid: str
    ts: Milliseconds
    cts: Milliseconds
    mv: int
    data: str
