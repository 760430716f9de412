"""How deeply MessagePack may nest: as deeply as JSON (broker/nesting.py)."""

from contextlib import suppress
from typing import Final

import msgpack

from broker.nesting import NestedTooDeeplyError
from config.limits import JSON_NESTING_MAX

_ARRAYS: Final = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
_MAPS: Final = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
_CONTAINERS: Final = bytes(_ARRAYS | _MAPS)


def check_message_pack_nesting(content: bytes) -> None:
    """Look at MessagePack before it is decoded. Bytes that are not MessagePack may pass: the decoder refuses them.

    Raises NestedTooDeeplyError.
    """
    if len(content) <= JSON_NESTING_MAX:  # as most frames are
        return
    most = len(content) - len(content.translate(None, _CONTAINERS))
    if most > JSON_NESTING_MAX and _nests_too_deeply(content):
        raise NestedTooDeeplyError


def _nests_too_deeply(content: bytes) -> bool:
    unpacker = msgpack.Unpacker()
    unpacker.feed(content)
    open_ = [1]  # for each array and map that has begun, how many of its values are still to come
    with suppress(IndexError, msgpack.UnpackException):  # not MessagePack
        while open_:
            open_[-1] -= 1
            first = content[unpacker.tell()]
            if first in _ARRAYS:
                open_.append(unpacker.read_array_header())
            elif first in _MAPS:
                open_.append(2 * unpacker.read_map_header())
            else:
                unpacker.skip()
            if len(open_) > JSON_NESTING_MAX + 1:
                return True
            while open_ and open_[-1] == 0:
                open_.pop()
    return False
