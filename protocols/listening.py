"""The listeners of the daemon, with their certificates: one table of all protocols."""

import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import structlog
import trio

from broker.device_management.objects import ObjectMap
from broker.device_management.sessions import ResourcePath
from broker.services import Services
from broker.trace.origin import listening_as
from config.loading import SettingsError
from config.settings import Address, Settings, Tls
from protocols.coap.dtls.connection import LWM2M_PRIORITIES
from protocols.coap.dtls.errors import DtlsUnavailable
from protocols.coap.dtls.listener import DtlsListener, serve_coap_dtls
from protocols.coap.echo import new_guard
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.lwm2m.datagrams import Lwm2mEndpoint
from protocols.coap.lwm2m.kinds import Kind
from protocols.coap.lwm2m.server import Lwm2mServer
from protocols.coap.lwm2m.streams import serve_lwm2m_tcp
from protocols.coap.server import serve_coap
from protocols.control.server import serve_control
from protocols.errors import ListenerError
from protocols.http.server import serve_http
from protocols.metrics.vitals import Vitals
from protocols.mqtt.server import serve_mqtt, serve_mqtt_connection
from protocols.operation.draining import Draining
from protocols.operation.operating import DaemonMachine
from protocols.operation.reload import Reloading
from protocols.streams.hub import Hub
from protocols.streams.inherited import inherited_sockets, pass_sockets
from protocols.streams.tls import PeerContext, RenewableContext
from protocols.websocket.server import serve_websocket_connection

_log = structlog.get_logger(__name__)

#: Without client certificates, with optional ones, with required ones; None where no listener needs it.
TlsContexts = tuple[RenewableContext | None, RenewableContext | None, RenewableContext | None]


async def listen(
    services: Services,
    settings: Settings,
    listeners: trio.Nursery,
    connections: trio.Nursery,
    reloading: Reloading,
    contexts: TlsContexts,
    draining: Draining,
) -> dict[str, Address]:
    """Start each listener that the settings name. Returns the bound addresses by the names of the listeners.

    Args:
        services: the broker.
        settings: where to listen.
        listeners: the nursery of the listeners.
        connections: that of the connections, which go on when the listeners have ended.
        reloading: is told what a reload renews.
        contexts: of `tls_contexts`.
        draining: what `trunkline drain` asks for.

    Raises:
        ListenerError: an address cannot be bound.
    """
    hub = Hub(connections, services.core.life)
    carried = partial(serve_mqtt_connection, services, hub=hub)
    websocket = partial(serve_websocket_connection, services, mqtt=carried, hub=hub)
    vitals = Vitals(services.core)
    reloading.others.append(vitals.renew)
    tls, optional, required = contexts
    http, https = (
        partial(serve_http, services, connections=connections, websocket=websocket, ssl_context=context, vitals=vitals)
        for context in (None, tls)
    )
    secure = partial(
        serve_http,
        services,
        connections=connections,
        websocket=websocket,
        ssl_context=required,
        is_secure=True,
        vitals=vitals,
    )
    own_accounts = partial(
        serve_http,
        services,
        connections=connections,
        websocket=None,
        ssl_context=tls,
        is_accounts=True,
        vitals=vitals,
    )
    mqtt, mqtts = (
        partial(serve_mqtt, services, connections=connections, ssl_context=context) for context in (None, optional)
    )
    endpoint, dtls = CoapEndpoint(services, guard=new_guard()), DtlsListener(services)
    coaps = partial(
        serve_coap_dtls,
        services,
        listener=dtls,
        certificate=settings.tls.certificate or Path(),
        key=settings.tls.key or Path(),
        second=settings.tls.second,
    )
    management = services.device_management
    lwm2m = Lwm2mServer(services, management.registrations, described=partial(_kind_described, management.objects))
    lwm2m_dtls = DtlsListener(services, endpoint=Lwm2mEndpoint(lwm2m), priorities=LWM2M_PRIORITIES)
    lwm2m_tcp, lwm2m_tls = (
        partial(serve_lwm2m_tcp, lwm2m, connections=connections, ssl_context=context) for context in (None, optional)
    )
    if any((settings.lwm2m.dtls_bind, settings.lwm2m.tcp_bind, settings.lwm2m.tls_bind)):
        await listeners.start(lwm2m.run)
    addresses: dict[str, Address] = {}
    closed: dict[str, str] = {}
    rows: tuple[tuple[str, Address | None, Callable[..., Awaitable[None]]], ...] = (
        ("http", settings.http.bind, http),
        ("https", settings.http.tls_bind, https),
        ("accounts", settings.accounts.tls_bind, own_accounts),
        ("secure", settings.secure.tls_bind, secure),
        ("mqtt", settings.mqtt.bind, mqtt),
        ("mqtts", settings.mqtt.tls_bind, mqtts),
        ("coap", settings.coap.bind, partial(serve_coap, services, endpoint=endpoint)),
        ("coaps", settings.coap.dtls_bind, coaps),
        (
            "lwm2m_dtls",
            settings.lwm2m.dtls_bind,
            partial(lwm2m_dtls.serve, first=settings.tls.first, second=settings.tls.second),
        ),
        ("lwm2m_tcp", settings.lwm2m.tcp_bind, lwm2m_tcp),
        ("lwm2m_tls", settings.lwm2m.tls_bind, lwm2m_tls),
    )
    try:
        given = inherited_sockets([name for name, bind, _ in rows if bind is not None])
    except OSError as error:
        raise ListenerError(error.strerror) from error
    for name, bind, serve in rows:
        if bind is None:
            continue
        listening_as(name)  # its tasks inherit the name
        pass_sockets(given.get(name, ()))
        try:
            addresses[name] = await listeners.start(serve, bind)
        except OSError as error:
            raise ListenerError(
                f"{name} cannot listen on {error.filename or bind}: {error.strerror or error}"
            ) from error
        except DtlsUnavailable as error:  # everything else works without it, so it must not keep the daemon down
            closed[name] = str(error)
            _log.error("dtls_disabled", listener=name, reason=str(error))
    listening_as("")
    pass_sockets(())
    for name, listener in (("coaps", dtls), ("lwm2m_dtls", lwm2m_dtls)):
        if name in addresses:
            reloading.certificates.append(partial(_prepare_dtls, listener))
    counters = vitals.counters
    if "coap" in addresses:
        counters["coap"] = endpoint.statistics
    if "coaps" in addresses:
        counters |= {"coaps": dtls.endpoint.statistics, "coaps handshakes": dtls.statistics}
    if addresses.keys() & {"lwm2m_dtls", "lwm2m_tcp", "lwm2m_tls"}:
        counters["lwm2m"] = lwm2m.statistics
    if "lwm2m_dtls" in addresses:
        counters |= {"lwm2m sessions": lwm2m_dtls.endpoint.statistics, "lwm2m handshakes": lwm2m_dtls.statistics}
    await listeners.start(partial(serve_control, services, settings.state_dir, counters=counters, draining=draining))
    vitals.listens(closed)
    services.operating.machine = DaemonMachine(settings, vitals, addresses)
    return addresses


def tls_contexts(settings: Settings, reloading: Reloading) -> TlsContexts:
    """TLS contexts of the listeners: without client certificates, with optional ones, with required ones.

    None where no listener needs it. The certificate is checked when any listener uses it, also one of DTLS.
    """
    has_dtls = settings.coap.dtls_bind is not None or (settings.lwm2m.dtls_bind is not None and settings.tls.first)
    needing = settings.http, settings.accounts, settings.secure, settings.mqtt, settings.lwm2m
    needs_any = bool(has_dtls) or any(listener.tls_bind is not None for listener in needing)
    optional = settings.mqtt.tls_bind or settings.lwm2m.tls_bind
    found: list[RenewableContext | None] = []
    for needed, make in (
        (needs_any, _tls),
        (optional is not None, partial(_tls_with_peers, required=False)),
        (settings.secure.tls_bind is not None, partial(_tls_with_peers, required=True)),
    ):
        context = RenewableContext(make, settings.tls) if needed else None
        found.append(context)
        if context is not None:
            reloading.certificates.append(context.prepare)
    plain, with_optional, with_required = found
    return plain, with_optional, with_required


def _tls(tls: Tls) -> ssl.SSLContext:
    certificate, key = tls.certificate, tls.key
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate or Path(), key)
        if tls.second is not None:
            context.load_cert_chain(*tls.second)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"tls: cannot use certificate {certificate} with key {key}: {error}") from error
    return context


def _tls_with_peers(tls: Tls, *, required: bool) -> PeerContext:
    """A TLS context for listeners that ask their peers for certificates, too."""
    try:
        return PeerContext(*(tls.first or (Path(), Path())), required=required, second=tls.second)
    except OSError as error:
        raise SettingsError(f"tls: {error}") from error


def _prepare_dtls(listener: DtlsListener, tls: Tls) -> Callable[[], None]:
    return listener.prepare(tls.first, tls.second)


def _kind_described(objects: ObjectMap, path: ResourcePath) -> Kind | None:
    """The type of a resource according to the model files of device management."""
    type_ = objects.type_at(path)
    return None if type_ is None else Kind.__members__.get(type_.name)
