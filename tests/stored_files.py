"""The files that a store has: images, and archives of exports and of users."""

from broker.services import Services
from storage.sql import StoreConnection
from storage.transaction import Transaction


async def stored_files(services: Services) -> dict[str, bytes]:
    """Their contents by name; without a name, by key: they are not whole, or wait for their deletion."""

    def work(tx: Transaction) -> dict[str, bytes]:
        return files_in(tx.connection)

    return await services.core.database.read(work)


def files_in(connection: StoreConnection) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    rows = connection.execute(
        "SELECT f.key, f.name, c.content FROM file AS f LEFT JOIN file_chunk AS c ON c.file = f.key"
        " ORDER BY f.key, c.position"
    )
    for row in rows:
        name = row["name"] or str(row["key"])
        found[name] = found.get(name, b"") + bytes(row["content"] or b"")
    return found
