"""A user of whom every part of the service knows something, and a search of the whole store for what is left."""

import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx
import trio

from broker.accounts.sessions import Visitor
from broker.forwarding.edge_book import NewEdge
from broker.secrets import token_hash
from broker.services import Services
from broker.trace.origin import Origin, enter
from broker.trials.trials import NewTrial
from storage.engines.sqlite import SqliteEngine
from storage.records import DeviceTokenRecord, GrantRecord, TokenRecord, UserRecord
from storage.sql import StoreConnection
from storage.transaction import Transaction
from tests.factories import BOBS, KITCHEN, LIGHT_TYPE, NOW_MS, World, new_device, new_user
from tests.stores import columns_of, schema_in_memory

ZOE, ZOE_TOKEN = "20e0" * 8, "51" * 16
EMAIL, FULL_NAME = "zoe.quillfeather@example.org", "Zoë Quillfeather"
HER_LIGHT, HER_TOKEN = "5e" * 16, "5f" * 16
HER_ADDRESS: Final = "198.51.100.77"
#: No store may have any of these, in any table or file.
WORDS: Final = ("quillfeather", HER_ADDRESS)


async def add_zoe(services: Services, world: World) -> UserRecord:
    """Zoe owns a light, and granted the Dashboard everything, also her profile."""
    sealed = services.core.vault.seal(HER_TOKEN)

    def work(tx: Transaction) -> UserRecord:
        zoe = tx.accounts.add_user(
            new_user(ZOE, email=EMAIL, name="zoe-quillfeather", full_name=FULL_NAME, password_hash=None, now_ms=NOW_MS)
        )
        tx.accounts.put_token(TokenRecord(token_hash(ZOE_TOKEN), world.application, zoe.key, 1, NOW_MS * 2))
        tx.accounts.put_grant(
            GrantRecord(zoe.key, world.application, world.light_type, read=True, write=True, profile=False)
        )
        tx.accounts.put_grant(GrantRecord(zoe.key, world.application, None, read=False, write=False, profile=True))
        key = tx.devices.put_device(
            new_device(
                HER_LIGHT,
                owner=zoe.key,
                device_type=world.light_type,
                name="Lamp of Zoë Quillfeather",
                manifest_version=1,
                manifest_version_policy="LATEST",
                enabled=True,
                now_ms=1,
            )
        )
        tx.devices.put_token(DeviceTokenRecord(key, token_hash(HER_TOKEN), sealed, world.application, 1))
        return zoe

    return await services.core.database.write(work)


class Life:
    """Zoe's use of the service."""

    def __init__(self, services: Services, api: httpx.AsyncClient) -> None:
        self._services = services
        self._api = api

    async def raw(
        self, method: str, path: str, *, token: str = ZOE_TOKEN, extra: Mapping[str, str] = {}, **more: Any
    ) -> httpx.Response:
        headers = {"Authorization": f"bearer {token}", **extra}
        return await self._api.request(method, path, headers=headers, **more)

    async def call(self, method: str, path: str, *, token: str = ZOE_TOKEN, status: int = 200, **more: Any) -> Any:
        answer = await self.raw(method, path, token=token, **more)
        assert answer.status_code == status, (method, path, answer.text)
        return answer.json()

    async def at_console(self, method: str, path: str) -> httpx.Response:
        """As the console does it, in a browser session of its own."""
        accounts = self._services.accounts
        session = await accounts.sessions.begin(await accounts.users.find(ZOE))
        return await self.raw(method, path, token=(await accounts.console.token(session)).value)

    async def live(self, zoe: UserRecord) -> None:
        await self._messages()
        await self._automation()
        await self._people(zoe)
        await self._account(zoe)
        await self._services.core.audit.flush()

    async def _messages(self) -> None:
        for data in ({"text": "Quillfeather"}, {"text": 1}):
            await self.call("POST", "/messages", json={"sdid": HER_LIGHT, "data": data})
        await self.call("POST", "/actions", json={"ddid": HER_LIGHT, "data": {"actions": [{"name": "setOn"}]}})
        span = {"startDate": NOW_MS - 1000, "endDate": NOW_MS + 1000}
        await self.call("POST", "/messages/export", json={"sdids": HER_LIGHT, **span})
        await self.call("DELETE", "/messages", params={"sdid": HER_LIGHT, "startDate": 0, "endDate": 1})
        await self._services.messages.projector.flush()
        file: dict[str, Any] = {"content": b"time,text\n", "extra": {"Content-Type": "text/csv"}}
        await self.call("POST", "/messages/import", params={"sdid": HER_LIGHT}, **file)

    async def _automation(self) -> None:
        on = {"ddid": HER_LIGHT, "action": "setOn", "parameters": {}}
        warm = {"sdid": HER_LIGHT, "field": "temperature", "operator": ">", "operand": {"value": 25}}
        text = "Quillfeather's own"
        rule = {"name": text, "description": text, "rule": {"if": {"and": [warm]}, "then": [on]}}
        await self.call("POST", "/rules", json=rule)
        parameters = {"to": {"value": "x@example.org"}, "subject": {"value": text}, "body": {"value": text}}
        mail = {"action": "sendEmail", "parameters": parameters}
        rings = {"if": {"and": [warm]}, "then": [mail], "alarm": {"severity": "critical", "text": text}}
        await self.call("POST", "/rules", json={"name": text, "rule": rings})
        telling = {"mail": True, "ntfy": {"url": "https://ntfy.example.org/quillfeather"}}
        await self.call("PUT", f"/users/{ZOE}/telling", json=telling)
        await self.call("POST", f"/users/{ZOE}/telling/test")
        await self.call("POST", "/messages", json={"sdid": HER_LIGHT, "data": {"temperature": 30}})
        await self._rang()
        tile = {"kind": "value", "title": text, "did": HER_LIGHT, "field": "temperature"}
        await self.call("POST", f"/users/{ZOE}/boards", json={"name": text, "tiles": [tile]})
        await self.call("POST", "/scenes", json={"name": text, "description": text, "actions": [on]})
        await self.call(
            "POST",
            "/subscriptions",
            json={
                "messageType": "message",
                "uid": ZOE,
                "sdid": HER_LIGHT,
                "callbackUrl": "https://app.example.org/quillfeather",
                "description": text,
            },
        )

    async def _rang(self) -> None:
        """Her alarm is told."""

        def is_told(tx: Transaction) -> bool:
            return tx.connection.execute("SELECT 1 AS told FROM alarm WHERE told > 0").one() is not None

        with trio.fail_after(30):
            while not await self._services.core.database.read(is_told):
                await trio.lowlevel.checkpoint()

    async def _people(self, zoe: UserRecord) -> None:
        await self.call("POST", f"/devices/{HER_LIGHT}/shares", json={"email": "bob@example.org"})
        shared = await self._services.devices.shares.offer(
            await self._services.devices.registry.find(BOBS), email=EMAIL
        )
        await self._services.devices.shares.answer(shared.id, zoe.key, "ACCEPTED")  # type: ignore[arg-type]
        await self._services.devices.shares.offer(await self._services.devices.registry.find(KITCHEN), email=EMAIL)
        caller = await self._services.accounts.tokens.caller(ZOE_TOKEN)
        trial = NewTrial(name="Quillfeather sleeps", description=EMAIL, device_types=[LIGHT_TYPE])
        await self._services.trials.trials.create(caller, trial)
        await self._services.forwarding.book.add(NewEdge("attic", EMAIL, "", 10))

    async def _account(self, zoe: UserRecord) -> None:
        await self.call("PUT", f"/users/{ZOE}/properties", json={"properties": "Quillfeather"})
        enter(Origin(HER_ADDRESS, f"user {ZOE}"))
        await self.call("PUT", f"/users/{ZOE}", json={"fullName": "Zoë Q. Quillfeather"})
        await self.call("PUT", f"/users/{ZOE}", json={"fullName": FULL_NAME, "language": "fr"})
        await self._services.accounts.sessions.begin(zoe, visitor=Visitor(HER_ADDRESS, "Quillfeather Browser"))
        enter(Origin())


def traces(folder: Path, words: Iterable[str] = WORDS) -> list[str]:
    """Where a store and the files beside it have one of these words, whatever the case: `table.column` or a file."""
    found = []
    wanted = [word.casefold() for word in words]
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # a daemon that runs has removed it since
            continue
        texts = {content.lower(), content.decode("latin-1").casefold().encode("latin-1", "ignore")}
        found += [f"{path.name}: {word}" for word in wanted if any(word.encode() in text for text in texts)]
    for store in folder.glob("*.sqlite"):
        with closing(SqliteEngine(store).open(read_only=True)) as opened:
            found += rows_with(opened, words)
    return sorted(set(found))


def rows_with(store: StoreConnection, words: Iterable[str] = WORDS) -> list[str]:
    """The columns of a store that have one of these words."""
    found, wanted = set(), [word.casefold() for word in words]
    for table in columns_of(store):
        for row in store.execute(f"SELECT * FROM {table}"):  # noqa: S608 - the tables of the store
            for name, value in dict(row).items():
                text = bytes(value).decode("latin-1") if isinstance(value, bytes) else json.dumps(value)
                found |= {f"{table}.{name}: {word}" for word in wanted if word in text.casefold()}
    return sorted(found)


def references(store: StoreConnection, user: int) -> list[str]:
    """The columns that refer to a user by key."""
    names, found = _columns_of_users(), []
    for table, columns in columns_of(store).items():
        for column in sorted((names.get(table, set()) | {"user", "owner"}) & {*columns}):
            sql = f"SELECT 1 AS refers FROM {table} WHERE {column} = :user LIMIT 1"  # noqa: S608 - of the store
            found += [f"{table}.{column}"] if store.execute(sql, {"user": user}).one() else []
    return found


@cache
def _columns_of_users() -> dict[str, set[str]]:
    """The columns of each table that refer to a user; a schema of SQLite says it shortly."""
    sql = 'SELECT t.name, r."from" FROM sqlite_master AS t, pragma_foreign_key_list(t.name) AS r'
    found: dict[str, set[str]] = {}
    with schema_in_memory() as db:
        for table, column in db.execute(f"{sql} WHERE t.type = 'table' AND r.\"table\" = 'user'"):
            found.setdefault(table, set()).add(column)
    return found
