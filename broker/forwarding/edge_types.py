"""Device types that edges bring: unknown ones are made here, with the Manifests of the edge."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from broker.clock import Clock
from broker.device_types.catalog import DeviceTypes
from broker.device_types.making import TypeChanges, TypeMaking
from broker.errors import DeviceTypeNotFound, DomainError, StorageUnavailable
from broker.forwarding.edges import Edges
from broker.forwarding.wire import SentType, TypesAnswer
from broker.ids import is_unique_name
from broker.names import plain_name_problem
from broker.nesting import check_nesting
from config.limits import NAME_MAX_CHARACTERS
from storage.database import Database
from storage.forwarding import EdgeRecord
from storage.sql import StoreError

_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class EdgeTypes:
    _database: Database
    _clock: Clock
    _types: DeviceTypes
    _making: TypeMaking
    _edges: Edges

    async def unknown(self, names: Iterable[str]) -> list[str]:
        """Which of the device types are not here. Raises StoreError."""
        return [name for name in names if not await self._is_here(name)]

    async def take(self, edge: EdgeRecord, store: str, sent: Mapping[str, SentType]) -> TypesAnswer:
        """Make device types that are not here yet. Raises Conflict, StorageUnavailable."""
        self._edges.refuse_others(edge, store)
        problems = dict[str, str]()
        try:
            for name, one in sent.items():
                if not await self._is_here(name) and (problem := await self._make(edge, name, one)):
                    problems[name] = problem
        except StoreError as error:
            raise StorageUnavailable.of(error) from error
        if problems:
            self._edges.note_problem(edge.key, next(iter(problems.values())))
        return TypesAnswer(self._clock.now_ms(), problems)

    async def _is_here(self, name: str) -> bool:
        try:
            await self._types.find(name)
        except DeviceTypeNotFound:
            return False
        return True

    async def _make(self, edge: EdgeRecord, name: str, sent: SentType) -> str:
        """Make a device type in the edge's organization. Return why it cannot be used yet; empty when it can."""
        if not is_unique_name(name):
            return f"The name of the device type {name!r} is no unique name."
        try:
            check_nesting(sent.manifest.encode())
            document: Any = msgspec.json.decode(sent.manifest)
        except (msgspec.DecodeError, DomainError):
            document = None
        if not isinstance(document, dict):
            return f"The Manifest of the device type {name} is no JSON object."
        key = edge.organization
        organization = await self._database.read(lambda tx: None if key is None else tx.accounts.organization(key))
        if organization is None:
            return f"The organization is gone in which the device type {name} would be made."
        called = sent.name if len(sent.name) <= NAME_MAX_CHARACTERS and not plain_name_problem(sent.name) else name[:64]
        try:
            record = await self._making.add(organization, name, called, TypeChanges())
            type_ = await self._types.get(record.key)
            uploaded = await self._making.upload(type_, document)
        except DomainError as refusal:
            findings = getattr(refusal, "findings", ())
            why = "; ".join(f"{one.field}: {', '.join(one.messages)}" for one in findings[:3]) or str(refusal)
            return f"The device type {name} cannot be made here: {why}"[:1_000]
        _log.info("edge_type_made", edge=edge.name, device_type=type_.id)
        if not uploaded.approved:
            return (
                f"The Manifest of the device type {name} waits for approval: trunkline type approve, at the upstream."
            )
        return ""
