"""Kinds of change for tests, and what was told of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec

from broker.cluster.news import NewsKind
from storage.database import Database
from storage.told import Told
from storage.transaction import Transaction


def _the_key(_tx: Transaction, key: Any) -> Any:
    return key


@dataclass(frozen=True, slots=True, eq=False)
class TestKind:
    """The content is the key unless `read` gives another one."""

    __test__ = False
    is_state: bool = False
    read: Callable[[Transaction, Any], Any] = field(default=_the_key)


NOTED = TestKind()


def hear(database: Database) -> list[Any]:
    """The contents of what is told from now on, in order."""
    heard: list[Any] = []
    database.on_told(lambda told: heard.extend(content for _kind, _key, content in told))
    return heard


def through_messagepack(told: Told) -> Told:
    """As another node would hear it."""
    kind, key, content = told
    if not isinstance(kind, NewsKind):
        return told
    return kind, _through(kind.key_type, key), _through(kind.content_type, content)


def _through(type_: Any, one: Any) -> Any:
    there = _decoder(type_).decode(msgspec.msgpack.encode(one))
    assert there == one
    return there


@cache
def _decoder(type_: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(type_)
