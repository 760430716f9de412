"""Find what would keep the daemon from starting, without starting it: `trunkline serve --check` (reference 27.1)."""

import socket
import ssl
from collections.abc import Callable, Iterator

from broker.secrets import Vault
from broker.store_key import opens_secrets
from broker.topic_devices.entries import entries_of
from config.loading import SettingsError
from config.settings import Address, Settings
from protocols.errors import StateError
from protocols.operation.key_file import KeyFileError
from protocols.operation.state import key_file_of
from protocols.outbound.tracing import check_tracing
from protocols.streams.binding import problem_of
from protocols.streams.tls import PeerContext
from storage.engines import engine_of, may_have_store
from storage.migrations import unknown_names
from storage.sealed import SEALED_COLUMNS
from storage.sql import StoreError


def start_problems(settings: Settings) -> list[str]:
    """One sentence for each problem. Changes nothing; a daemon may be running."""
    found: list[str] = []
    checks: tuple[Callable[[Settings], None], ...] = (_check_certificates, _check_tracing, check_store)
    found += _problems_of_listeners(settings)
    try:
        entries_of(settings)
    except SettingsError as error:
        found += [str(error), *error.others]
    for check in checks:
        try:
            check(settings)
        except (SettingsError, StateError, StoreError, KeyFileError, OSError, ValueError) as error:
            found.append(" ".join(str(error).split()))
    return found


def _problems_of_listeners(settings: Settings) -> Iterator[str]:
    """Addresses that this machine has not, and those of which two listeners want the same port. A port that another
    process has is not said: a running daemon has them all."""
    taken: dict[tuple[bool, Address], str] = {}
    for name in settings.listeners:
        table, _, key = name.partition(".")
        is_udp = key == "dtls_bind" or name == "coap.bind"
        for one in getattr(getattr(settings, table), key).all:
            if problem := problem_of(one, socket.SOCK_DGRAM if is_udp else socket.SOCK_STREAM):
                yield f"{name}: {one}: {problem}"
            if one.port and (former := taken.setdefault((is_udp, one), name)) != name:
                yield f"{name}: {one}: {former} has it already"


def _check_tracing(settings: Settings) -> None:
    check_tracing(settings.tracing)


def _check_certificates(settings: Settings) -> None:
    """Load the certificates as the daemon does, for the listeners of streams and of datagrams."""
    if not any(name.endswith(("tls_bind", "dtls_bind")) for name in settings.listeners):
        return
    for chain in filter(None, (settings.tls.first, settings.tls.second)):
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*chain)
            PeerContext(*chain, required=False)
        except OSError as error:  # ssl.SSLError, too
            raise ValueError(f"tls: cannot use certificate {chain[0]} with key {chain[1]}: {error}") from error


def check_store(settings: Settings) -> None:
    """Read the store, which others may be using. A missing store is no problem: the daemon makes one.

    Raises:
        KeyFileError: the key cannot be read.
        StateError: the key opens none of the store's secrets.
        StoreError: the store cannot be read, or a newer version has made it.
    """
    if not may_have_store(settings):
        return
    engine = engine_of(settings)
    with engine.snapshot() as snapshot:
        if not snapshot.steps():
            return
        if unknown := sorted(unknown_names(snapshot.steps())):
            raise StoreError(f"{engine}: a newer version has made this store: {', '.join(unknown)}")
        file, is_private = key_file_of(settings.state_dir, None)
        keys = file.keys(is_private=is_private)
        columns = [at for at in SEALED_COLUMNS if snapshot.has(at.table, at.column)]
        if not opens_secrets(snapshot.rows, Vault(*keys), columns=columns):
            copy = ": copy the key of the machine that serves it" if settings.storage.is_postgresql else ""
            raise StateError(f"{file.path}: this key opens none of the store's secrets{copy}")
