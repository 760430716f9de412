"""Sends requests to third parties: counts and signs them, and renews access tokens."""

from dataclasses import dataclass, field

import msgspec
import structlog

from broker.clock import Clock
from broker.connectors.catalog import Connector
from broker.connectors.hooks import PluginFailedError
from broker.connectors.links import ConnectorLink, ConnectorLinks
from broker.connectors.oauth import AuthorizationRefusedError, OperatorFaultError, TokenRevokedError
from broker.connectors.plugin import AccessToken, Phase, Request, Response
from broker.connectors.port import ThirdParty, ThirdPartyUnreachableError
from broker.devices.registry import Devices
from broker.errors import DeviceNotFound, TryLater
from broker.limits.meters import Meters
from broker.limits.quotas import Quotas, ReservedRequest
from config.limits import CONNECTOR_CALLS_PER_DAY, CONNECTOR_CALLS_PER_MINUTE
from config.rates import Rate
from storage.keys import DeviceTypeKey, UserKey

_USUAL = Rate(CONNECTOR_CALLS_PER_MINUTE, CONNECTOR_CALLS_PER_DAY)


class CallBudget:
    """Counts the calls for each user (reference 21.1); those of a type that has its own limits apart."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def take(self, user: UserKey, device_type: DeviceTypeKey, own_rate: Rate | None) -> None:
        """Count one call for the user. Raises RateLimitExceeded; the call is not counted then."""
        if not self._meters.are_on:
            return
        name = f"connectors user {user}"
        if own_rate is None:
            self._meters.named(name, _USUAL).count()
        else:
            self._meters.named(f"{name} type {device_type}", own_rate).count()


_EARLY_MS = 30_000  # a token may expire while the request is under way
_CHARGED = frozenset({Phase.FETCH, Phase.ACTION})  # reference 21.2: data pulls and Action sends
_log = structlog.get_logger(__name__)


class LinkEndedError(Exception):
    """The link was ended or replaced during the call."""

    def __str__(self) -> str:
        return "the link was ended or replaced during the call"


#: The expected failures of a call. The caller logs them and continues.
CALL_FAILURES = (
    ThirdPartyUnreachableError,
    TryLater,
    DeviceNotFound,
    AuthorizationRefusedError,
    TokenRevokedError,
    LinkEndedError,
    PluginFailedError,
)


@dataclass(slots=True, eq=False, repr=False)
class Calls:
    """`quotas` charges devices on a plan; None: nothing is charged. `third_party` None: every call fails."""

    _links: ConnectorLinks
    _devices: Devices
    _budget: CallBudget
    _quotas: Quotas | None
    _clock: Clock
    _third_party: ThirdParty | None
    sent: int = field(default=0, init=False)
    failed: int = field(default=0, init=False)
    operator_faults: int = field(default=0, init=False)

    async def plain(self, connector: Connector, user: UserKey, request: Request) -> Response:
        """Send a request that needs no link, and count it for the user.

        Raises RateLimitExceeded, ThirdPartyUnreachableError.
        """
        self._budget.take(user, connector.type.key, connector.terms.own_rate)
        if self._third_party is None:
            raise ThirdPartyUnreachableError("requests to third parties are switched off")
        try:
            response = await self._third_party.send(request)
        except ThirdPartyUnreachableError:
            self.failed += 1
            raise
        self.sent += 1
        return response

    async def send(
        self,
        connector: Connector,
        link: ConnectorLink,
        request: Request,
        phase: Phase,
        sub_device: str | None = None,
        reserved: ReservedRequest | None = None,
    ) -> Response:
        """Send a plug-in's request for a linked device.

        A token that has expired is renewed before the request. A token that the third party refuses with 401 is renewed
        once, and the request is sent again. When only the user can renew the token, the link is ended and
        TokenRevokedError raised. The device for which a request is `reserved` is charged, else that of the link.

        Raises one of CALL_FAILURES.
        """
        try:
            token = link.contents.token
            if token.expires_on is not None and token.expires_on <= self._clock.now_ms() + _EARLY_MS:
                await self._renew(connector, link, token)
            response = await self._once(connector, link, request, phase, sub_device, reserved)
            if response.status != 401:
                return response
            if connector.oauth.blames_client(response):
                raise OperatorFaultError("server_error", "the third party refuses the client in a request for data")
            await self._renew(connector, link, link.contents.token)
            response = await self._once(connector, link, request, phase, sub_device, reserved)
            if response.status == 401:
                raise TokenRevokedError
        except TokenRevokedError:
            await self._end(link)
            raise
        except OperatorFaultError as error:
            self.note_operator_fault(connector, error)
            raise
        return response

    def note_operator_fault(self, connector: Connector, error: OperatorFaultError) -> None:
        """Tell the operator that the third party refuses the client of this connector."""
        self.operator_faults += 1
        _log.error("connector_client_refused", device_type=connector.type.id, reason=str(error))

    async def _end(self, link: ConnectorLink) -> None:
        if link.is_new:
            return
        async with self._links.standing(link.record.device):
            ended = await self._links.end(link.record)
        if ended:
            _log.info("connector_link_revoked", device=link.record.device_id)

    async def _once(
        self,
        connector: Connector,
        link: ConnectorLink,
        request: Request,
        phase: Phase,
        sub_device: str | None,
        reserved: ReservedRequest | None,
    ) -> Response:
        if self._quotas is not None and phase in _CHARGED:
            device = await self._devices.get(link.record.device if reserved is None else reserved.device)
            if reserved is not None:
                reserved.release()
            self._quotas.charge_connector_request(device)
        prepared = await connector.hooks.prepared(request, link.device(sub_device), phase)
        if prepared is None:
            prepared = connector.oauth.sign(request, link.contents.token)
        if phase in _CHARGED and await self._links.current(link) is None:
            raise LinkEndedError
        return await self.plain(connector, link.record.owner, prepared)

    async def _renew(self, connector: Connector, link: ConnectorLink, used: AccessToken) -> None:
        if link.is_new:
            token = await self._renewed(connector, link, used)
            link.contents = msgspec.structs.replace(link.contents, token=token)
            return
        async with self._links.lock(link.record.device):
            current = await self._links.current(link)
            if current is None:
                raise LinkEndedError
            link.contents = current.contents
            if current.contents.token != used:  # another call has renewed it
                return
            token = await self._renewed(connector, link, used)
            await self._links.replace(link, msgspec.structs.replace(current.contents, token=token))

    async def _renewed(self, connector: Connector, link: ConnectorLink, used: AccessToken) -> AccessToken:
        request = connector.oauth.refresh(used)
        if request is None:
            raise TokenRevokedError
        response = await self.plain(connector, link.record.owner, request)
        return connector.oauth.refreshed(response, used, now_ms=self._clock.now_ms())
