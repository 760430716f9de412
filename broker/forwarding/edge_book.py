"""The operator's side of stores that forward to this one: their names, tokens and owners (reference 30.2)."""

import re
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from broker.accounts.issuance import Issuance
from broker.accounts.users import user_named
from broker.clock import Clock
from broker.errors import Conflict, NotFound, UserNotFound, ValidationFailed, invalid
from broker.forwarding.edges import Edges
from broker.ids import is_id, new_id
from broker.messages.mids import Mids
from broker.secrets import token_hash
from broker.trace.audit import AuditEvent, note
from config.limits import EDGE_DEVICES_MAX, EDGES_MAX
from storage.database import Database
from storage.forwarding import EdgeOrigin, EdgeRecord
from storage.keys import Milliseconds
from storage.records import NEW_KEY, UserRecord
from storage.transaction import Transaction

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class NewEdge(msgspec.Struct, frozen=True):
    """`owner`: an e-mail address, an id or a user name. `organization`: a name or an id; empty: device types that are
    not known here are not made. `devices_max`: how many devices it may make."""

    name: str
    owner: str
    organization: str
    devices_max: int


class EdgeSeen(msgspec.Struct, frozen=True):
    """An edge for its operator."""

    record: EdgeRecord
    owner: str  # the e-mail address
    organization: str
    devices: int


@dataclass(eq=False)
class EdgeBook:
    _database: Database
    _clock: Clock
    _mids: Mids
    _edges: Edges

    async def add(self, new: NewEdge) -> tuple[EdgeRecord, str]:
        """Add an edge; return it and its token, which is shown only here.

        Raises ValidationFailed, UserNotFound, NotFound (the organization), Conflict.
        """
        if _NAME.fullmatch(new.name) is None:
            raise ValidationFailed.of("name", invalid("expected 1 to 64 letters, digits, _, . and -"))
        if not 1 <= new.devices_max <= EDGE_DEVICES_MAX:
            raise ValidationFailed.of("devices", invalid(f"expected 1 to {EDGE_DEVICES_MAX}"))
        token, now_ms = new_id(), self._clock.now_ms()

        def work(tx: Transaction) -> EdgeRecord:
            owner = user_named(tx, new.owner)
            if owner is None:
                raise UserNotFound
            organization = None
            if new.organization:
                named = tx.accounts.organization_named(new.organization)
                organization = named or tx.accounts.organization_by_id(new.organization)
                if organization is None:
                    raise NotFound
            if tx.forwarding.edge_named(new.name) is not None:
                raise Conflict(f"There is an edge {new.name}")
            if tx.forwarding.count_edges() >= EDGES_MAX:
                raise Conflict(f"There are {EDGES_MAX} edges")
            tx.forwarding.add_edge(
                EdgeRecord(
                    key=NEW_KEY,
                    name=new.name,
                    owner=owner.key,
                    token_hash=token_hash(token),
                    organization=None if organization is None else organization.key,
                    devices_max=new.devices_max,
                    store=None,
                    batch=None,
                    batch_upto=None,
                    ranges=(),
                    accepts=False,
                    messages=0,
                    dropped=0,
                    actions_upto=None,
                    created_on=Milliseconds(now_ms),
                    seen_on=None,
                )
            )
            note(tx, AuditEvent.EDGE_ADDED, f"edge {new.name}", now_ms=now_ms, owner=owner.id)
            return _standing(tx, new.name)

        added = await self._database.write(work)
        self._edges.note(added)
        return added, token

    async def seen(self) -> list[EdgeSeen]:
        def work(tx: Transaction) -> list[EdgeSeen]:
            return [_seen(tx, one) for one in tx.forwarding.edges(limit=EDGES_MAX)]

        return await self._database.read(work)

    async def remove(self, name: str) -> None:
        """Its token ends, its devices stay. Raises NotFound."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> int:
            known = _standing(tx, name)
            tx.forwarding.remove_edge(known.key)
            note(tx, AuditEvent.EDGE_REMOVED, f"edge {name}", now_ms=now_ms)
            return known.key

        self._edges.forget(await self._database.write(work))

    async def renew(self, name: str) -> tuple[EdgeRecord, str]:
        """Give it another token; the former one ends. Raises NotFound."""
        token, now_ms = new_id(), self._clock.now_ms()

        def work(tx: Transaction) -> EdgeRecord:
            tx.forwarding.put_edge(replace(_standing(tx, name), token_hash=token_hash(token)))
            note(tx, AuditEvent.EDGE_TOKEN_RENEWED, f"edge {name}", now_ms=now_ms)
            return _standing(tx, name)

        return await self._database.write(work), token

    async def accept(self, name: str, *, new_positions: bool) -> EdgeRecord:
        """Take the next batch whichever copy of the store sends it, after a backup was restored.

        `new_positions`: the sender was restored, so it gives positions again that it had given to other messages, and
        nothing of it counts as stored. Raises NotFound.
        """
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> EdgeRecord:
            known = _standing(tx, name)
            ranges = () if new_positions else known.ranges
            tx.forwarding.put_edge(replace(known, accepts=True, ranges=ranges))
            note(tx, AuditEvent.EDGE_ACCEPTED, f"edge {name}", now_ms=now_ms, new_positions=new_positions)
            return _standing(tx, name)

        accepted = await self._database.write(work)
        self._edges.note(accepted)
        return accepted

    async def origin(self, mid: str, name: str = "") -> EdgeOrigin:
        """Where a message has come from, by its mid here; with the name of an edge by its mid there.

        Raises NotFound: it has come from no edge, or retention has deleted it.
        """
        if not is_id(mid):
            raise NotFound

        def work(tx: Transaction) -> EdgeOrigin | None:
            if name:
                return tx.forwarding.message_of(_standing(tx, name), bytes.fromhex(mid))
            position = self._mids.position(mid)
            return None if position is None else tx.forwarding.origin_of(position)

        found = await self._database.read(work)
        if found is None or not int(found.remote_mid, 16):
            raise NotFound
        return found

    def mid_of(self, origin: EdgeOrigin) -> str:
        return self._mids.mid(origin.position)

    def end_all_of(self, issuance: Issuance, owner: UserRecord) -> list[str]:
        """End those of a user in the caller's transaction (`broker/accounts/claims.py: Ender`)."""
        known = issuance.tx.forwarding.edges_of(owner.key)
        for one in known:
            issuance.tx.forwarding.remove_edge(one.key)
            note(issuance.tx, AuditEvent.EDGE_REMOVED, f"edge {one.name}", now_ms=issuance.now_ms)
        return [one.name for one in known]


def _standing(tx: Transaction, name: str) -> EdgeRecord:
    known = tx.forwarding.edge_named(name)
    if known is None:
        raise NotFound
    return known


def _seen(tx: Transaction, record: EdgeRecord) -> EdgeSeen:
    owner = tx.accounts.user(record.owner)
    organization = None if record.organization is None else tx.accounts.organization(record.organization)
    return EdgeSeen(
        record,
        "" if owner is None else owner.email,
        "" if organization is None else organization.name,
        tx.forwarding.count_edge_devices(record.key),
    )
