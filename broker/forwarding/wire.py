"""Requests and answers between two Trunklines: /v1.1/forwarded (reference 30.3). Both sides read with these types."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from broker.ids import is_id
from config.limits import (
    FORWARD_ACTIONS,
    FORWARD_BATCH_MESSAGES,
    FORWARD_BODY_BYTES,
    FORWARD_PATH_MAX,
    FORWARD_POLL_SECONDS,
    MAX_DATA_BYTES,
)
from storage.keys import Position

Number = Annotated[int, Meta(ge=0, le=1 << 62)]
# `$` also stands before a line break at the end, `\Z` does not.
Id = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
OrNone = Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")]
#: The id of a device at the sender, of any form that a Trunkline accepts.
Remote = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[\x21-\x7e]+\Z")]
_Name = Annotated[str, Meta(min_length=1, max_length=256)]

#: Where they are below the address of the upstream.
PATH: Final = "/v1.1/forwarded"
ACTIONS_PATH: Final = "/v1.1/forwarded/actions"


class SentMessage(msgspec.Struct, frozen=True):
    """A message, whose `data` is the JSON text that the sender has stored. `did` names its device there."""

    position: Number
    mid: Id
    did: Remote
    ts: Number
    data: Annotated[str, Meta(max_length=4 * MAX_DATA_BYTES)]


class SentDevice(msgspec.Struct, frozen=True):
    """`path`: the stores that its messages have come through, the sender last."""

    name: _Name
    type: _Name
    path: Annotated[tuple[Id, ...], Meta(min_length=1, max_length=FORWARD_PATH_MAX)]


class SentType(msgspec.Struct, frozen=True):
    """A device type that the upstream does not know. `manifest`: the JSON text of its Manifest."""

    name: _Name
    manifest: Annotated[str, Meta(max_length=FORWARD_BODY_BYTES)]


class Batch(msgspec.Struct, frozen=True):
    """All messages that the sender has for the upstream with `after < position <= upto`, in order.

    `id` is new for each batch and is kept by the sender before it is sent; `previous` is that of the batch before.
    Up to `complete` the sender has nothing more to send; between that and `after` it may have left parts for later.
    """

    store: Id
    id: Id
    previous: OrNone
    after: Number
    upto: Number
    messages: Annotated[tuple[SentMessage, ...], Meta(max_length=FORWARD_BATCH_MESSAGES)]
    devices: Annotated[dict[Remote, SentDevice], Meta(max_length=FORWARD_BATCH_MESSAGES)]
    complete: Number | None = None


class ForwardAsked(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request: the store that will send, with device types that the upstream has asked for; or a batch of it.

    `known`, of a greeting: the last batch, and one whose answer the sender has not heard. The last one at the upstream
    is one of them, unless there are two copies of a store.
    """

    store: Id | None = None
    known: Annotated[tuple[Id, ...], Meta(max_length=2)] | None = None
    types: Annotated[dict[_Name, SentType], Meta(max_length=FORWARD_BATCH_MESSAGES)] | None = None
    batch: Batch | None = None


class BatchAnswer(msgspec.Struct, frozen=True):
    """`upto`: so far the batch is stored; the same as its `after`: nothing of it is. `problem`: why not all of it.

    `seconds`: until then it is not worth a try. `types`: the upstream wants to be told of these device types.
    """

    upto: Number
    now: Number
    stored: Number = 0
    dropped: Number = 0
    problem: Annotated[str, Meta(max_length=2_000)] = ""
    seconds: Annotated[float, Meta(ge=0, le=1e9)] = 0
    types: Annotated[tuple[_Name, ...], Meta(max_length=FORWARD_BATCH_MESSAGES)] = ()


class TypesAnswer(msgspec.Struct, frozen=True):
    """`problems`: why a type cannot be used, a sentence for each."""

    now: Number
    problems: dict[_Name, Annotated[str, Meta(max_length=2_000)]] = {}


class Greeting(msgspec.Struct, frozen=True):
    """The upstream, and what it has of the sender. `store`: which one it is."""

    store: Id
    now: Number
    batch: OrNone = ""
    upto: Number = 0


class ActionsAsked(msgspec.Struct, frozen=True):
    """The Actions after the position `after` of the upstream; those up to it are stored here. Without it, the ones from
    now on. `wait`: how many seconds the upstream may wait for one."""

    store: Id
    after: Number | None = None
    wait: Annotated[float, Meta(ge=0, le=FORWARD_POLL_SECONDS)] = 0


class SentAction(msgspec.Struct, frozen=True):
    position: Number
    mid: Id
    did: Remote
    ts: Number
    data: Annotated[str, Meta(max_length=4 * MAX_DATA_BYTES)]


class ActionsAnswer(msgspec.Struct, frozen=True):
    """The Actions up to the position `upto`."""

    upto: Number
    actions: Annotated[tuple[SentAction, ...], Meta(max_length=FORWARD_ACTIONS)] = ()


def position_of(mid: str) -> Position | None:
    """The position in a mid of any store; None for what is none."""
    return Position(int(mid[:16], 16)) if is_id(mid) else None
