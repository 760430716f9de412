"""Runs a command of the control socket on the store of a stopped daemon. It takes the whole daemon to do so."""

import os
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from broker.services import open_services
from broker.trace.origin import Origin, enter
from config.settings import Settings
from protocols.control.audit import note_command
from protocols.control.naming import with_ids
from protocols.control.server import COMMANDS
from protocols.operation.standby import alone_for_a_command
from protocols.operation.state import StateDirectory
from protocols.outbound.streams import cloud_streams
from storage.database import Database
from storage.engines import engine_of
from storage.engines.sqlite import SqliteEngine


async def run_on_store(settings: Settings, state: StateDirectory, command: str, arguments: Mapping[str, Any]) -> Any:
    """The data of the command's answer.

    Raises:
        DomainError: the command is refused.
        StateError: a daemon on another machine serves the store, or a command runs there.
        StoreError: the store cannot be used, or an older version has made it: the daemon and `trunkline migrate`
            upgrade it.
    """
    engine = engine_of(settings, upgrades=False)
    enter(Origin("command line", f"operator {os.getuid()}"))
    services_of_store = open_services(settings, Database(engine), state.vault, streams=cloud_streams(settings))
    # The state directory is locked, which keeps the daemon of this machine away; PostgreSQL may have others.
    alone = nullcontext() if isinstance(engine, SqliteEngine) else alone_for_a_command(engine, settings, command)
    async with alone, services_of_store as services:
        arguments = await with_ids(services, arguments)
        done = await COMMANDS[command](services, arguments)
        await note_command(services, command, arguments, "done")
        return done
