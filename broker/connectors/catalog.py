"""The connectors of device types: which plug-in each type has, loaded and configured."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Final

import msgspec
import structlog
import trio

from broker.connectors.generic import GenericConnector
from broker.connectors.hooks import Hooks, PluginFailedError, guarded
from broker.connectors.oauth import OAuthClient, oauth_client
from broker.connectors.plugin import ConnectorPlugin, Setting
from broker.connectors.terms import ConnectorTerms
from broker.device_types.catalog import DeviceType, DeviceTypes
from broker.errors import Conflict, DomainError
from broker.secrets import Vault
from config.limits import CONNECTOR_HOOK_SECONDS
from storage.database import Database
from storage.keys import DeviceTypeKey
from storage.records import ConnectorRecord

NO_CONNECTOR: Final = "Device type has no cloud connector."

PLUGIN_GROUP: Final = "trunkline.connectors"
GENERIC: Final = "generic"
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class ConnectorUnavailable(DomainError):
    """The plug-in of the type's connector cannot be used. The log has the reason."""

    status = 503
    template = "Service Unavailable"


class Connector:
    """One device type's connector."""

    def __init__(self, type_: DeviceType, terms: ConnectorTerms, oauth: OAuthClient, hooks: Hooks) -> None:
        self.type = type_
        self.terms = terms
        self.oauth = oauth
        self.hooks = hooks


def load_plugin(name: str) -> type[ConnectorPlugin]:
    """Load the installed plug-in of this name. This runs third-party code: call it in a worker thread.

    Raises PluginFailedError.
    """
    if name == GENERIC:
        return GenericConnector
    found = list(entry_points(group=PLUGIN_GROUP, name=name))
    if not found:
        raise PluginFailedError(f"no plug-in {name!r} is installed")
    kind = guarded(found[0].load, name)
    if not (isinstance(kind, type) and issubclass(kind, ConnectorPlugin)):
        raise PluginFailedError(f"{found[0].value} is no ConnectorPlugin")
    return kind


def make_plugin(terms: ConnectorTerms, setting: Setting) -> ConnectorPlugin:
    """Create a plug-in with the operator's parameters, in a worker thread. Raises PluginFailedError."""
    kind = load_plugin(terms.plugin)
    return guarded(lambda: kind(setting), terms.plugin)


class Catalog:
    """Finds the connector of a device type."""

    def __init__(
        self, database: Database, vault: Vault, device_types: DeviceTypes, base_url: Callable[[], str]
    ) -> None:
        self._database = database
        self._vault = vault
        self._types = device_types
        self._base_url = base_url
        self._by_key: dict[DeviceTypeKey, Connector] = {}
        self._by_id: dict[str, Connector] = {}
        #: The types whose plug-in cannot be used.
        self.unusable: dict[DeviceTypeKey, DeviceType] = {}
        self._reloading = trio.Lock()

    async def reload(self) -> None:
        """Read the connectors of all types. A plug-in that cannot be used is logged, and its connector left out."""
        async with self._reloading:  # the latest reading is set last
            await self._reload()

    async def _reload(self) -> None:
        found: dict[DeviceTypeKey, Connector] = {}
        unusable: dict[DeviceTypeKey, DeviceType] = {}
        for record in await self._database.read(lambda tx: tx.connectors.connectors()):
            try:
                found[record.device_type] = await self._connector(record)
            except PluginFailedError as error:
                unusable[record.device_type] = await self._types.get(record.device_type)
                _log.error("connector_unusable", device_type=record.device_type, reason=str(error))
        self._by_key, self.unusable = found, unusable
        self._by_id = {connector.type.id: connector for connector in found.values()}

    async def _connector(self, record: ConnectorRecord) -> Connector:
        type_ = await self._types.get(record.device_type)
        terms = msgspec.json.decode(self._vault.open(record.terms), type=ConnectorTerms)
        setting = Setting(type_.id, terms.parameters, lambda: f"{self.address(type_.id)}/thirdpartynotifications")
        with trio.move_on_after(CONNECTOR_HOOK_SECONDS):
            plugin = await trio.to_thread.run_sync(lambda: make_plugin(terms, setting), abandon_on_cancel=True)
            return Connector(type_, terms, oauth_client(terms), Hooks(plugin))
        raise PluginFailedError(f"{terms.plugin}: not ready after {CONNECTOR_HOOK_SECONDS} s")

    def address(self, device_type_id: str) -> str:
        """The base address at which third parties and browsers reach the connector of this type."""
        return f"{self._base_url()}/cloudconnectors/{device_type_id}"

    def of_type(self, type_: DeviceType) -> Connector:
        """The connector of a type.

        Raises:
            Conflict: the type has no connector.
            ConnectorUnavailable: the plug-in of its connector cannot be used.
        """
        if (found := self._by_key.get(type_.key)) is not None:
            return found
        self.check(type_)
        raise ConnectorUnavailable

    def check(self, type_: DeviceType) -> None:
        """Raise Conflict when the type has no connector. A connector that cannot be used counts."""
        if not type_.record.has_cloud_connector:
            raise Conflict(NO_CONNECTOR)

    def find(self, device_type: DeviceTypeKey) -> Connector | None:
        return self._by_key.get(device_type)

    def by_id(self, device_type_id: str) -> Connector | None:
        return self._by_id.get(device_type_id)

    def all(self) -> Iterable[Connector]:
        return tuple(self._by_key.values())
