"""Links devices with their users' accounts at the third party, and ends these links (reference 23)."""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import structlog
import trio

from broker.accounts.redirects import with_parameters
from broker.accounts.tokens import Caller
from broker.clock import Clock
from broker.connectors.calls import CALL_FAILURES, Calls
from broker.connectors.catalog import Catalog, Connector
from broker.connectors.links import ConnectorLink, ConnectorLinks, Contents
from broker.connectors.oauth import AuthorizationRefusedError, Granted, OperatorFaultError
from broker.connectors.plugin import Phase
from broker.connectors.port import ThirdPartyUnreachableError
from broker.connectors.problems import NO_DEVICE, Doing, Problems
from broker.devices.registry import Device, Devices
from broker.errors import DeviceNotFound, DomainError, TryLater, ValidationFailed, invalid
from broker.facts import Fact, ProviderAuthRemoved
from broker.secrets import Vault, token_hash
from config.limits import CONNECTOR_SECONDS, CONNECTOR_STATE_SECONDS, CONNECTOR_STATES
from storage.database import Database
from storage.records import ConnectorLinkRecord, ConnectorStateRecord
from storage.transaction import Transaction

_REFERER_CHARACTERS: Final = 2_000
_CLEANED_AT_ONCE: Final = 100
#: So long an authorization may take to finish, for which a state is kept.
_FINISH_MS: Final = 10 * CONNECTOR_SECONDS * 1000
#: The error codes of RFC 6749, 4.1.2.1. No other text of the third party is passed on in the browser's address.
_ERRORS: Final = frozenset(
    {
        "access_denied",
        "invalid_request",
        "invalid_scope",
        "server_error",
        "temporarily_unavailable",
        "unauthorized_client",
        "unsupported_response_type",
    }
)
_log = structlog.get_logger(__name__)


class ThirdPartyFailed(DomainError):
    """The request to the third party failed. The reason is in the log."""

    status = 502
    template = "Bad Gateway"


@dataclass(slots=True, eq=False, repr=False)
class ProviderAuth:
    _database: Database
    _vault: Vault
    _clock: Clock
    _publish: Callable[[Fact], Awaitable[None]]  # on all nodes
    _devices: Devices
    _catalog: Catalog
    _links: ConnectorLinks
    _calls: Calls
    _problems: Problems

    async def holder(self, device: Device) -> Device:
        """The device whose link authorizes requests for this one: itself, or the one whose sub-device it is."""
        key = await self._database.read(lambda tx: tx.connectors.holder_of(device.key))
        return device if key is None else await self._devices.get(key)

    # Beginning

    async def begin(self, caller: Caller, device: Device, *, referer: str, mobile: bool) -> str:
        """Begin an authorization; returns the address to send the browser to.

        Args:
            caller: whose right to write to the device is checked already.
            device: the device to link; for a sub-device, its holder.
            referer: the address to which the browser returns at the end.
            mobile: prefer the third party's page for small screens.

        Raises:
            Conflict: the type has no connector.
            ValidationFailed: `Referer` is not an address of the caller's application.
            RateLimitExceeded, ThirdPartyFailed, ConnectorUnavailable.
        """
        connector = self._catalog.of_type(device.type)
        if not await self._database.read(lambda tx: _is_of_application(tx, caller, referer)):
            raise ValidationFailed.of("Referer", invalid("must be a registered redirect URI of the application"))
        state = secrets.token_urlsafe(32)
        redirect_uri = self._redirect_uri(connector)
        try:
            first = connector.oauth.first_request(with_parameters(redirect_uri, [("state", state)]))
            response = None if first is None else await self._calls.plain(connector, device.owner, first)
            started = connector.oauth.start(redirect_uri=redirect_uri, state=state, mobile=mobile, response=response)
        except TryLater:  # has its own answer to the client
            raise
        except CALL_FAILURES as error:
            self._problems.note_error(connector.type.key, NO_DEVICE, Doing.AUTHORIZATION, error)
            _log.warning("connector_authorization_failed", device=device.id, reason=str(error))
            raise ThirdPartyFailed from error
        now_ms = self._clock.now_ms()
        record = ConnectorStateRecord(
            hash=token_hash(state),
            device=device.key,
            user=device.owner,
            referer=referer,
            application=caller.application_id,
            sealed=self._vault.seal(started.secret),
            expires_on=now_ms + CONNECTOR_STATE_SECONDS * 1000,
        )
        await self._database.write(lambda tx: tx.connectors.add_state(record, now_ms=now_ms, at_most=CONNECTOR_STATES))
        return started.url

    def _redirect_uri(self, connector: Connector) -> str:
        return f"{self._catalog.address(connector.type.id)}/auth"

    # Coming back

    async def finish(self, device_type: str, parameters: Mapping[str, str]) -> str:
        """Finish an authorization when the browser returns from the third party.

        Returns the address to send the browser to: the `referer` of `begin`, with `error` in its query when the device
        could not be linked.

        Raises ValidationFailed: the state is unknown, used, expired, or another type's.
        """
        state = await self._taken_state(parameters.get("state", ""))
        device = await self._device_of(state, device_type)
        connector = self._catalog.of_type(device.type)
        if (error := parameters.get("error")) is not None:
            error = error if error in _ERRORS else "server_error"
            _log.info("connector_authorization_refused", device=device.id, error=error)
            return with_parameters(state.referer, [("error", error)])
        try:
            granted = await self._granted(connector, device, state, parameters)
            await self._link(state, connector, device, granted)
        except CALL_FAILURES as failure:
            if isinstance(failure, OperatorFaultError):
                self._calls.note_operator_fault(connector, failure)
            self._problems.note_error(connector.type.key, NO_DEVICE, Doing.AUTHORIZATION, failure)
            _log.warning("connector_authorization_failed", device=device.id, reason=str(failure))
            return with_parameters(state.referer, [("error", _error_of(failure))])
        self._problems.note_success(connector.type.key, NO_DEVICE, Doing.AUTHORIZATION)
        self._problems.forget(device.key)
        _log.info("connector_linked", device=device.id)
        return state.referer

    async def _taken_state(self, state: str) -> ConnectorStateRecord:
        hashed = token_hash(state)
        now_ms = self._clock.now_ms()
        taken = await self._database.write(partial(_take_state, hashed, now_ms)) if state else None
        if taken is None or taken.expires_on <= now_ms:
            raise ValidationFailed.of("state", invalid("is unknown, was used, or has expired"))
        return taken

    async def _device_of(self, state: ConnectorStateRecord, device_type: str) -> Device:
        try:
            device = await self._devices.get(state.device)
        except DeviceNotFound as error:
            raise ValidationFailed.of("state", invalid("is of a device that does not exist any more")) from error
        type_ = device.type.record
        if device.owner != state.user or device_type not in {type_.id, type_.unique_name}:
            raise ValidationFailed.of("state", invalid("is of another device type or user"))
        return device

    async def _granted(
        self, connector: Connector, device: Device, state: ConnectorStateRecord, parameters: Mapping[str, str]
    ) -> Granted:
        request = connector.oauth.exchange(
            redirect_uri=self._redirect_uri(connector), parameters=parameters, secret=self._vault.open(state.sealed)
        )
        response = await self._calls.plain(connector, device.owner, request)
        return connector.oauth.granted(response, now_ms=self._clock.now_ms())

    async def _link(
        self,
        state: ConnectorStateRecord,
        connector: Connector,
        device: Device,
        granted: Granted,
    ) -> None:
        """Subscribe, and only then store the credentials and mark the device as authorized, in one transaction.

        Until then the former link stands, also when the subscription fails or the daemon is killed.
        """
        link = await self._links.new(device, Contents(token=granted.token, account=granted.account))
        await self._subscribe(connector, link)
        async with self._links.standing(device.key):
            is_begun = await self._links.begin(link, state.hash, application_id=state.application)
        if is_begun:
            return
        await self._unsubscribe(connector, link)
        if is_begun is None:
            raise AuthorizationRefusedError("access_denied", "the authorization was revoked during the sign-in")
        raise AuthorizationRefusedError("server_error", "the device was deleted during the sign-in")

    async def _subscribe(self, connector: Connector, link: ConnectorLink) -> None:
        for request in await connector.hooks.subscribe(link.device()):
            response = await self._calls.send(connector, link, request, Phase.SUBSCRIBE)
            await self._links.note(link, await connector.hooks.subscribed(link.device(), request, response))

    # Ending

    async def revoke(self, device: Device, *, application_id: str | None) -> None:
        """Unsubscribe and delete the credentials, whatever the third party answers, within `CONNECTOR_SECONDS`.

        Nothing of the third party is stored for the device after the return.

        Raises Conflict: the type has no connector.
        """
        self._catalog.check(device.type)
        async with self._links.standing(device.key):  # a link that is being stored is whole first, and ends then
            await self._database.write(lambda tx: tx.connectors.forget_states(device.key))
            record = await self._database.read(lambda tx: tx.connectors.link(device.key))
        if record is not None:
            await self._end(record, application_id)
        await self._publish(ProviderAuthRemoved(device.key))

    async def clean_up(self) -> None:
        """End the links of deleted devices."""
        orphans = await self._database.read(lambda tx: tx.connectors.orphans(limit=_CLEANED_AT_ONCE))
        for record in orphans:
            await self._end(record)

    async def _end(self, record: ConnectorLinkRecord, application_id: str | None = None) -> None:
        connector, link = self._catalog.find(record.device_type), self._links.opened(record)
        if connector is not None and link is not None:
            await self._unsubscribe(connector, link)
        async with self._links.standing(record.device):
            await self._links.end(record, application_id=application_id)

    async def _unsubscribe(self, connector: Connector, link: ConnectorLink) -> None:
        with trio.move_on_after(CONNECTOR_SECONDS):
            try:
                for request in await connector.hooks.unsubscribe(link.device()):
                    response = await self._calls.send(connector, link, request, Phase.UNSUBSCRIBE)
                    await connector.hooks.unsubscribed(link.device(), request, response)
            except CALL_FAILURES as error:
                _log.warning("connector_unsubscribe_failed", device=link.record.device_id, reason=str(error))


def _take_state(state: bytes, now_ms: int, tx: Transaction) -> ConnectorStateRecord | None:
    return tx.connectors.take_state(state, until_ms=now_ms + _FINISH_MS)


def _is_of_application(tx: Transaction, caller: Caller, referer: str) -> bool:
    """Whether the Referer has the scheme and host of a redirect URI of the application of the caller's token.

    The token of a device that the operator provisioned belongs to no application: there, any application will do. Its
    holder gets nothing from the browser's return but the wish to see that page.
    """
    if not referer or len(referer) > _REFERER_CHARACTERS or not referer.isprintable():
        return False
    if "\\" in referer:  # a slash to browsers: they would go to another host than the one that is compared here
        return False
    key = caller.application
    if key is None and (token := tx.devices.token_by_hash(caller.token)) is not None:
        key = token.application
        if key is None:
            return _site(referer) in {_site(uri) for uri in tx.accounts.redirect_uris()} - {None}
    application = tx.accounts.application(key) if key is not None else None
    return application is not None and _site(referer) in {_site(uri) for uri in application.redirect_uris} - {None}


def _site(uri: str) -> tuple[str, str] | None:
    try:
        parts = urlsplit(uri)
        return (parts.scheme, parts.hostname) if parts.scheme and parts.hostname else None
    except ValueError:
        return None


def _error_of(failure: Exception) -> str:
    if isinstance(failure, TryLater | ThirdPartyUnreachableError):
        return "temporarily_unavailable"
    return failure.error if isinstance(failure, AuthorizationRefusedError) else "server_error"
