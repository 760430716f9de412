"""The table `connectors` of the provision file, which binds cloud connectors to device types."""

from urllib.parse import urlsplit

import msgspec
import trio

from broker.connectors.catalog import make_plugin
from broker.connectors.hooks import PluginFailedError
from broker.connectors.oauth import oauth_client
from broker.connectors.plugin import Setting
from broker.connectors.terms import ConnectorEntry, ConnectorTerms, OAuth1Terms, OAuth2Terms
from broker.errors import ValidationFailed
from broker.provisioning.reading import EntryLocation, ReadTables
from broker.provisioning.report import MASKED, ChangedKey
from broker.provisioning.run import ProvisioningRun
from config.limits import CONNECTOR_HOOK_SECONDS
from config.rates import MOST_PER_MINUTE
from storage.records import ConnectorRecord

_MOST_MINUTES = 366 * 24 * 60
_MOST_PER_DAY = 10**9
_NUMBERS: dict[str, int] = {
    "pull_minutes": _MOST_MINUTES,
    "calls_per_minute": MOST_PER_MINUTE,
    "calls_per_day": _MOST_PER_DAY,
}


async def check_connectors(reading: ReadTables) -> None:
    """Check each entry by itself, and make its plug-in once with these parameters. Before the transaction.

    An entry that is wrong, or whose plug-in refuses the parameters, is refused.
    """
    for at, entry in reading.of("connectors"):
        try:
            await _check(at, entry)
        except ValidationFailed as error:
            reading.refuse(at, entry, error)


async def _check(at: EntryLocation, entry: ConnectorEntry) -> None:
    _check_numbers(at, entry)
    try:
        oauth_client(entry)
    except ValueError as error:
        raise at.refusal("oauth2", str(error)) from error
    for name, terms in (("oauth2", entry.oauth2), ("oauth1", entry.oauth1)):
        _check_addresses(at, name, terms)
    await _check_plugin(at, entry)


def _check_numbers(at: EntryLocation, entry: ConnectorEntry) -> None:
    for key, most in _NUMBERS.items():
        number = getattr(entry, key)
        if number is not None and not 1 <= number <= most:
            raise at.refusal(key, f"must be 1 to {most}")


def _check_addresses(at: EntryLocation, name: str, terms: OAuth2Terms | OAuth1Terms | None) -> None:
    for key in () if terms is None else terms.__struct_fields__:
        value = getattr(terms, key)
        if key.endswith("_url") and value is not None and not _is_address(value):
            raise at.refusal(f"{name}.{key}", "must be an address that begins with https://")


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    # http is for test clouds: such a request is sent only if outbound.allow_private_addresses permits it.
    return parts.scheme in {"https", "http"} and bool(parts.hostname) and text.isprintable() and " " not in text


async def _check_plugin(at: EntryLocation, entry: ConnectorEntry) -> None:
    setting = Setting(entry.device_type, entry.parameters, str)
    with trio.move_on_after(CONNECTOR_HOOK_SECONDS):
        try:
            await trio.to_thread.run_sync(make_plugin, entry, setting, abandon_on_cancel=True)
        except PluginFailedError as error:
            raise at.refusal("plugin", str(error)) from error
        return
    raise at.refusal("plugin", f"not ready after {CONNECTOR_HOOK_SECONDS} s")


class ConnectorTables:
    def __init__(self, run: ProvisioningRun) -> None:
        self._run = run

    def put_connector(self, at: EntryLocation, entry: ConnectorEntry) -> None:
        """`check_connectors` must have checked the entry."""
        type_ = self._run.type_of(at, "device_type", entry.device_type)
        connectors, terms = self._run.tx.connectors, entry.terms
        known = connectors.connector(type_.key)
        if known is not None and self._run.vault.open(known.terms) == _text(terms):
            return self._run.found(at, type_.key, type_.unique_name)
        connectors.put_connector(ConnectorRecord(type_.key, terms.plugin, self._run.vault.seal(_text(terms))))
        if known is None:
            return self._run.created(at, type_.key, type_.unique_name)
        former = msgspec.json.decode(self._run.vault.open(known.terms), type=ConnectorTerms)
        return self._run.found(at, type_.key, type_.unique_name, _changed(former, terms))


def _changed(former: ConnectorTerms, terms: ConnectorTerms) -> list[ChangedKey]:
    """The keys that differ. Registrations and parameters may have secrets anywhere, so they are masked."""
    plain = {*_NUMBERS, "plugin"}
    return [
        ChangedKey(key, old if key in plain else MASKED, new if key in plain else MASKED)
        for key in terms.__struct_fields__
        if (old := getattr(former, key)) != (new := getattr(terms, key))
    ]


def _text(terms: ConnectorTerms) -> str:
    return msgspec.json.encode(terms, order="sorted").decode()
