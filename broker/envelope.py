"""Messages and Actions as clients see them. Each protocol renders the members under its own names."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """A normalised data message. `data` is compact JSON, `boid` the billing organization of the device type's owner."""

    position: int
    mid: str
    sdid: str
    sdtid: str
    uid: str
    boid: str
    ts: int
    cts: int
    mv: int
    data: str


@dataclass(frozen=True, slots=True)
class Action:
    """An Action message. `uid` is the owner of the destination device, `data` compact JSON `{"actions":[…]}`."""

    position: int
    mid: str
    sdid: str
    ddid: str
    ddtid: str
    uid: str
    boid: str
    ts: int
    cts: int
    mv: int
    data: str
