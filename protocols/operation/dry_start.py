"""A start of the daemon that serves nobody: on a copy of the store's schema, on free ports of the loopback address.

install.sh runs it with a new version before that takes the place of the running one.
"""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import trio

from broker.secrets import Vault
from broker.services import Services
from config.settings import Address, Log, Outbound, Settings
from protocols.daemon import run_daemon
from protocols.errors import STORE
from protocols.operation.key_file import KeyFile
from storage.engines.sqlite_copy import copy_schema

_LOOPBACK: Final = "127.0.0.1"


async def dry_start(settings: Settings) -> None:
    """Start, open every listener, and stop.

    Raises: as `run_daemon`, and StoreError when the schema cannot be read.
    """
    stop = trio.Event()

    async def ready(_services: Services, _addresses: Mapping[str, Address]) -> None:
        stop.set()

    with TemporaryDirectory() as folder:
        state_dir = Path(folder) / "state"
        state_dir.mkdir(mode=0o700)
        if (settings.state_dir / STORE).exists():
            copy_schema(settings.state_dir / STORE, state_dir / STORE)
            KeyFile(state_dir / "key").write(Vault.new_key())
        await run_daemon(_elsewhere(settings, state_dir), ready=ready, stop=stop)


def _elsewhere(settings: Settings, state_dir: Path) -> Settings:
    """Settings with the same listeners and certificates at free ports, another state, and no receivers."""
    changed: dict[str, Any] = {"state_dir": state_dir, "outbound": Outbound(), "log": Log(level="warning")}
    changed["storage"] = msgspec.structs.replace(settings.storage, url="sqlite")  # nothing of a database is touched
    for listener in settings.listeners:
        table, _, key = listener.partition(".")
        of = changed.get(table, getattr(settings, table))
        changed[table] = msgspec.structs.replace(of, **{key: Address(_LOOPBACK, 0)})
    changed["tracing"] = msgspec.structs.replace(settings.tracing, endpoint="")
    return msgspec.structs.replace(settings, **changed)
