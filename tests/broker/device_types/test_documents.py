"""Manifests that are uploaded are read beside the loop, one long one at a time."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.device_types import documents
from broker.device_types.catalog import DeviceType
from broker.device_types.documents import DeviceTypeDocuments
from broker.device_types.manifest import Manifest
from broker.device_types.manifest_parser import parse_manifest
from broker.device_types.manifests import Manifests
from broker.errors import ValidationFailed
from broker.services import Services
from broker.trace.origin import Origin, enter
from storage.transaction import Transaction
from tests.factories import LIGHT_MANIFEST, LIGHT_TYPE, World

T = TypeVar("T")


def _long(name: str) -> dict[str, Any]:
    return {"fields": [{"name": name, "valueClass": "Integer", "description": "x" * 50}] * 200}


class _Held:
    """A thread that begins when it is told to."""

    def __init__(self) -> None:
        self.begun: list[trio.Event] = []

    async def __call__(self, sync_fn: Callable[[], T], /, *, limiter: trio.CapacityLimiter | None = None) -> T:
        assert limiter is None
        may_go = trio.Event()
        self.begun.append(may_go)
        await may_go.wait()
        return sync_fn()


async def test_long_documents_are_read_one_at_a_time_and_by_user_in_turns() -> None:
    thread = _Held()
    reader, read = DeviceTypeDocuments(thread), list[str]()

    async def reads(user: str) -> None:
        enter(Origin("192.0.2.1", f"user {user}"))
        with pytest.raises(ValidationFailed):
            await reader.read(_long("a"))
        read.append(user)

    async with trio.open_nursery() as nursery:
        for user in ("eve", "eve", "eve", "ada"):
            nursery.start_soon(reads, user)
            await wait_all_tasks_blocked()
        for number in range(4):
            assert len(thread.begun) == number + 1
            thread.begun[number].set()
            await wait_all_tasks_blocked()
    assert read == ["eve", "ada", "eve", "eve"]


async def test_a_document_that_is_refused_never_reaches_the_writer(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All commits would wait while it is read there."""
    writes: list[object] = []
    write: Callable[..., Awaitable[Any]] = services.core.database.write

    async def noted(work: Callable[[Transaction], Any], **more: Any) -> Any:
        writes.append(work)
        return await write(work, **more)

    monkeypatch.setattr(services.core.database, "write", noted)
    type_ = await services.device_types.catalog.find(LIGHT_TYPE)
    manifests: Manifests = services.device_types.manifests
    refused: list[dict[str, Any]] = [{"fields": [{}]}, _long("a"), {}]
    for document in refused:
        with pytest.raises(ValidationFailed):
            await services.device_types.making.upload(type_, document)
        with pytest.raises(ValidationFailed):
            await manifests.upload(LIGHT_TYPE, document)
    assert writes == []
    await services.device_types.making.upload(type_, {**LIGHT_MANIFEST, "actions": []})
    assert len(writes) == 1


async def test_each_document_is_read_once_and_old_versions_when_a_device_wants_them(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A type may have a thousand versions, and a long one takes 0.1 s, in which nobody else is served."""
    read: list[object] = []

    def noting(document: object) -> Manifest:
        read.append(document)
        return parse_manifest(document)

    monkeypatch.setattr(documents, "parse_manifest", noting)
    type_ = await services.device_types.catalog.find(LIGHT_TYPE)
    for number in range(5):
        fields = [{"name": f"f{number}_{one}", "valueClass": "Integer"} for one in range(200)]
        await services.device_types.making.upload(type_, {"fields": fields})
    assert len(read) == 5
    newest = type_.versions[-1]
    records = await services.device_types.manifests.documents(type_.key)
    documents.parsed_manifest.cache_clear()
    read.clear()
    again = DeviceType(type_.record, records)
    assert again.latest.version == newest
    assert len(read) == 1
    assert again.version(newest - 1) is again.version(newest - 1)
    assert again.version(newest + 1) is None
    assert len(read) == 2
