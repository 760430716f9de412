"""`trunkline key rotate`: a new key for the secrets in the store, while no daemon runs."""

import os
import time
from contextlib import closing
from contextvars import copy_context
from pathlib import Path

import click

from broker.resealing import Resealing, reseal, told
from broker.secrets import Vault
from broker.trace.audit import AuditEvent, entry_of
from broker.trace.origin import Origin, enter
from config.loading import load_settings
from config.logging import configure_logging
from config.settings import Settings
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.failures import CommandError
from protocols.cli.options import config_option
from protocols.errors import StateError, StateInUseError, require_store
from protocols.operation.key_file import KeyFileError
from protocols.operation.state import open_state
from storage.audit import AuditStore
from storage.engines import StoreAnywhere, engine_of
from storage.signing_keys import SigningKeyStore


@click.group()
def key() -> None:
    """The key that seals the secrets in the store."""


@key.command()
@click.option(
    "--key-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the key is, if not in the state directory: the source of systemd's credential.",
)
@config_option
def rotate(key_file: Path | None, config: Path | None) -> None:
    """Seal every secret in the store with a new key, and remove the old key.

    Stop the daemon first. If the command is interrupted, the daemon can start all the same; run the command again to
    finish. A backup of the store needs the key of its time: keep that key as long as the backup.
    """
    with failures_reported():
        settings = load_settings(config)
        configure_logging("warning", settings.log.format)
        try:
            done = rotate_key(settings, key_file)
        except StateInUseError as error:
            raise CommandError(f"{error}: stop the daemon before its key is changed", 4) from error
    click.echo(f"{done.secrets - done.unreadable.total()} secrets are sealed with the new key; the old key is removed")
    if done.unreadable:
        click.echo(f"left as they are, because the old key does not open them: {told(done.unreadable)}")


def rotate_key(settings: Settings, key_path: Path | None = None) -> Resealing:
    """Reseal the store under a new key, or finish a rotation that was interrupted.

    While it lasts, the key file has the new key and the old one, so that whatever is sealed can be opened.

    Raises:
        StateInUseError: a daemon runs.
        StateError: the state directory or the key cannot be used, or there is no store.
        StoreError: the store cannot be read or written.
    """
    with open_state(settings, key_path=key_path) as state:
        require_store(settings)
        try:
            keys = state.keys if len(state.keys) > 1 else (Vault.new_key(), *state.keys)
            state.key_file.write(*keys)
            # In a context of its own: the origin that the audit log gets is the origin of this work only.
            done = copy_context().run(_reseal, engine_of(settings, upgrades=False), Vault(*keys))
            state.key_file.write(keys[0])
        except KeyFileError as error:
            raise StateError(str(error)) from error
    return done


def _reseal(engine: StoreAnywhere, vault: Vault) -> Resealing:
    engine.migrate()
    # Closing writes all pages into the store, so that none sealed with the old key is left beside it.
    with closing(engine.open(read_only=False)) as store:
        done = reseal(store, vault)
        enter(Origin("command line", f"operator {os.getuid()}"))
        store.begin(write=True)
        now_ms = time.time_ns() // 1_000_000
        AuditStore(store).add(entry_of(AuditEvent.KEY_ROTATED, now_ms=now_ms))
        # Somebody who has the old key may have opened it. The daemon makes another one for the next sign-in.
        SigningKeyStore(store).remove_all()
        store.commit()
        return done
