"""`trunkline demo`: a daemon with an embedded store, demo data and simulated devices."""

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import trio

from broker.device_management.configuration import ConfigurationChange
from broker.device_types.examples import load_examples
from broker.errors import NotFound
from broker.forwarding.edge_book import NewEdge
from broker.ids import new_id
from broker.provisioning import ProvisionReport
from broker.services import Services
from config.limits import EDGE_DEVICES
from config.loading import load_settings
from config.logging import configure_logging
from config.settings import (
    Address,
    Coap,
    ConsoleSettings,
    HomeAssistant,
    Http,
    Limits,
    Log,
    Lwm2m,
    Mcp,
    Mqtt,
    Outbound,
    Settings,
    Storage,
)
from config.shown_command import with_state
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.demo_nodes import KEY, DemoNode, introduction_of, simulate_over, start_others
from protocols.cli.demo_services import DemoBalancer, balancer_line, database_in, find_balancer
from protocols.cli.failures import CommandError
from protocols.cli.serve import announce
from protocols.daemon import run_daemon
from protocols.operation.pausing_clock import PausingClock

_DEFAULT_STATE = Path("~/.local/state/trunkline-demo")
_HOST = "127.0.0.1"
_ORGANIZATION = "example"  # owner of the shipped device types (reference 8.7)
_ADMINISTRATOR = "admin@example.org"
_APPLICATION = "Demo"
_LIGHT, _WEATHER, _BOARD = "example.smart_light", "example.weather_station", "example.managed_board"
_DOOR = "example.door_sensor"
_LWM2M_BOARD = "demo.lwm2m_board"
_DAY_SECONDS = 86_400
_EDGE = "edge"
_LISTENERS = {"mqtt": "mqtt", "websocket": "http", "http": "http", "lwm2m": "lwm2m_dtls"}


class _Device(msgspec.Struct, frozen=True):
    id: str
    name: str
    type: str
    protocol: str | None  # None: not simulated, for the user of the demo
    simulated_as: str | None = None  # the shipped type whose readings it sends; None: its own


_DEVICES = (
    _Device("d0" * 15 + "01", "Kitchen light", _LIGHT, "mqtt"),
    _Device("d0" * 15 + "02", "Garden weather", _WEATHER, "websocket"),
    _Device("d0" * 15 + "03", "Roof weather", _WEATHER, "http"),
    _Device("d0" * 15 + "04", "Your light", _LIGHT, None),
    _Device("d0" * 15 + "05", "Workshop board", _BOARD, "lwm2m"),
    _Device("d0" * 15 + "06", "Front door", _DOOR, None),
    _Device("d0" * 15 + "07", "Balcony board", _LWM2M_BOARD, "lwm2m", _BOARD),
)
_SCENE = "5c" * 16
_WARM_RULE, _QUIET_RULE, _ALARM_RULE = "1e" * 16, "2e" * 16, "3e" * 16


_KINDS = (socket.SOCK_STREAM, socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_DGRAM)
_PORT = click.IntRange(0, 65535)


@click.command()
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=_DEFAULT_STATE,
    show_default=True,
    help="Where the demo keeps its store; delete it to start over.",
)
@click.option(
    "--store",
    default="sqlite",
    metavar="URL",
    help="postgresql://USER@HOST/DATABASE keeps the store there; PGPASSWORD or ~/.pgpass has the password.",
)
@click.option("--http-port", type=_PORT, default=8080, show_default=True)
@click.option("--mqtt-port", type=_PORT, default=1883, show_default=True)
@click.option("--coap-port", type=_PORT, default=5683, show_default=True)
@click.option("--lwm2m-port", type=_PORT, default=5686, show_default=True)
@click.option(
    "--nodes",
    "number",
    type=click.IntRange(1, 9),
    default=1,
    show_default=True,
    help="Serve with several nodes, on these ports and the next ones, over a PostgreSQL that is started with them "
    "(or --store), behind HAProxy if it is installed.",
)
@click.option("--balancer-port", type=_PORT, default=8090, show_default=True, help="HTTP of HAProxy.")
@click.option("--balancer-mqtt-port", type=_PORT, default=1893, show_default=True, help="MQTT of HAProxy.")
@click.option("--show-actions", is_flag=True, help="Print the Actions that the simulated devices receive.")
@click.pass_context
def demo(
    ctx: click.Context,
    state: Path,
    store: str,
    http_port: int,
    mqtt_port: int,
    coap_port: int,
    lwm2m_port: int,
    number: int,
    balancer_port: int,
    balancer_mqtt_port: int,
    show_actions: bool,
) -> None:
    """Serve with demo data and simulated devices, on this machine only, and print commands to try."""
    if number > 1:
        ports = {"http": http_port, "mqtt": mqtt_port, "coap": coap_port, "lwm2m": lwm2m_port}
        at_balancer = {"http": balancer_port, "mqtt": balancer_mqtt_port}
        _serve_together(ctx, state.expanduser(), store, number, ports, at_balancer, show_actions)
        return
    settings = Settings(
        state_dir=state.expanduser(),
        http=Http(bind=Address(_HOST, _port(ctx, "http_port", http_port))),
        mqtt=Mqtt(bind=Address(_HOST, _port(ctx, "mqtt_port", mqtt_port)), topics="open", persistent_sessions="on"),
        coap=Coap(bind=Address(_HOST, _port(ctx, "coap_port", coap_port, socket.SOCK_DGRAM))),
        lwm2m=Lwm2m(dtls_bind=Address(_HOST, _port(ctx, "lwm2m_port", lwm2m_port, socket.SOCK_DGRAM))),
        home_assistant=(HomeAssistant(_ADMINISTRATOR),),
        outbound=Outbound(allow_private_addresses=True),  # for callbacks on this machine
        console=ConsoleSettings(operators=(_ADMINISTRATOR,)),
        # Whoever tries out a document, or lets an assistant do it, makes more calls than the usual hundred in a minute.
        limits=Limits(rest_user="1000/10000"),
        mcp=Mcp("act"),
        log=Log(level="warning"),
        storage=Storage(url=store),
    )
    _serve(settings, (), None, show_actions)


def _serve(settings: Settings, nodes: Sequence[DemoNode], balancer: DemoBalancer | None, show_actions: bool) -> None:
    with_state(settings.state_dir)
    configure_logging(settings.log.level, settings.log.format)
    with failures_reported():
        trio.run(_run, settings, nodes, balancer, show_actions, clock=PausingClock())


def _serve_together(
    ctx: click.Context,
    state: Path,
    store: str,
    number: int,
    ports: Mapping[str, int],
    at_balancer: Mapping[str, int],
    show_actions: bool,
) -> None:
    """Serve with several nodes, of which this process is the first one."""
    folder, nodes = state.with_name(f"{state.name}-nodes"), list[DemoNode]()
    with ExitStack() as stack:
        if store == "sqlite":
            store = stack.enter_context(database_in(state, is_new=not (state / KEY).exists()))
        for at in range(number):
            name = chr(ord("a") + at)
            node = DemoNode(name, folder / f"{name}.toml", folder / name if at else state)
            taken = {  # one that is started again has the ports that it had, which the balancer knows
                one: _port(ctx, f"{one}_port", port + at if port else 0, kind) or _free_port(kind)
                for (one, port), kind in zip(ports.items(), _KINDS, strict=True)
            }
            node.configure(ports=taken, store=store, operator=_ADMINISTRATOR)
            nodes.append(node)
        balancer = None
        if (program := find_balancer()) is not None:
            options = ("balancer_port", "balancer_mqtt_port")
            balancer = DemoBalancer(
                program,
                folder / "haproxy.cfg",
                {
                    one: Address(_HOST, _port(ctx, option, port) or _free_port())
                    for option, (one, port) in zip(options, at_balancer.items(), strict=True)
                },
            )
        with failures_reported():
            settings = load_settings(nodes[0].config)
        _serve(settings, nodes, balancer, show_actions)


def _free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """One that is free now."""
    with socket.socket(type=kind) as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _port(ctx: click.Context, option: str, port: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port from the command line is used as it is; a default port that is taken is replaced by a free one."""
    if ctx.get_parameter_source(option) is not click.core.ParameterSource.DEFAULT:
        return port
    with socket.socket(type=kind) as probe:
        if kind == socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            click.echo(f"Port {port} is taken; using a free one. --{option.replace('_', '-')} chooses another.")
            return 0
    return port


async def _run(
    settings: Settings, nodes: Sequence[DemoNode], balancer: DemoBalancer | None, show_actions: bool
) -> None:
    async with trio.open_nursery() as simulators:

        async def ready(services: Services, addresses: Mapping[str, Address]) -> None:
            user_token = new_id()
            report = await services.provisioning.apply(_document(user_token))
            for name in (_BOARD, _LWM2M_BOARD):
                board = await services.device_types.catalog.find(name)
                with_properties = ConfigurationChange(device_properties_enabled=True)
                await services.device_management.configurations.change(board, with_properties)
            tokens = {device.id: await _device_token(services, device.id) for device in _DEVICES}
            await announce(services, addresses)
            stopping, shown = services.core.life.stopping, addresses
            about = list[str]()
            if nodes:
                nodes[0].serves(addresses)
                await start_others(nodes[1:], settings.state_dir / KEY, stopping, simulators)
                is_balanced = balancer is not None and await simulators.start(_run_until, balancer, nodes, stopping)
                if balancer is not None and is_balanced:
                    shown = {**addresses, **balancer.addresses}
                about = introduction_of(nodes, balancer_line(balancer, is_balanced=is_balanced), shown["http"])
            code = await services.accounts.console.new_code(_ADMINISTRATOR)
            link = f"http://{shown['http']}/console/enter?code={code}"
            edge = await _edge_token(services, settings.state_dir)
            about.append(f'  Edge      forwards here: [[forward]] to = "http://{shown["http"]}", token_file = "{edge}"')
            await _pin(services)
            about.append(f"  Board     http://{shown['http']}/console/board: a chart, a value, an Action and a scene")
            about.append(
                f"  OpenID    for Grafana or Node-RED: http://{shown['http']}/.well-known/openid-configuration"
            )
            introduction = _introduction(settings, shown, report, user_token, tokens, link, about)
            click.echo("\n".join(introduction))
            output = None if show_actions else subprocess.DEVNULL
            for number, device in enumerate(_DEVICES):
                listener = _LISTENERS.get(device.protocol or "", "")
                if (address := addresses.get(listener)) is None:  # LWM2M needs GnuTLS
                    continue
                if nodes:
                    simulate = partial(_simulate_at, device, tokens[device.id], output)
                    # The last node first: it is one to be killed.
                    simulators.start_soon(simulate_over, nodes[::-1], number, listener, simulate, stopping)
                else:
                    simulators.start_soon(_simulate, device, address, tokens[device.id], stopping, output)

        await run_daemon(settings, ready=ready)
    click.echo("The demo has stopped; its data is kept.")


async def _run_until(
    balancer: DemoBalancer, nodes: Sequence[DemoNode], stopping: trio.Event, *, task_status: trio.TaskStatus[bool]
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(balancer.run, nodes, task_status)
        await stopping.wait()
        nursery.cancel_scope.cancel()


def _document(user_token: str) -> Mapping[str, Any]:
    """The demo data as a provision document. Devices keep their tokens; the user token is new in every run."""
    return {
        "organizations": [{"name": _ORGANIZATION, "monthly_messages": -1}],
        "users": [
            {
                "email": _ADMINISTRATOR,
                "full_name": "Demo Administrator",
                "organization": _ORGANIZATION,
                "role": "administrator",
            }
        ],
        "device_types": [
            {
                "unique_name": example.unique_name,
                "name": example.name,
                "description": example.description,
                "organization": _ORGANIZATION,
                "published": example.published,
                "tags": [tag.name for tag in example.tags],
                "manifest": msgspec.json.decode(example.manifest_document),
            }
            for example in load_examples()
            if not example.rsp  # the demo has no certificate authority
        ]
        + [_LWM2M_TYPE],
        "applications": [
            {
                "name": _APPLICATION,
                "organization": _ORGANIZATION,
                "methods": ["client_credentials"],
                "redirect_uri": "http://localhost/",  # callbacks must be at the same host
            }
        ],
        "devices": [
            {"id": device.id, "owner": _ADMINISTRATOR, "type": device.type, "name": device.name} for device in _DEVICES
        ],
        "tokens": [
            {"value": user_token, "application": _APPLICATION, "user": _ADMINISTRATOR, "expires_in": _DAY_SECONDS}
        ],
        "rules": [
            _rule(_WARM_RULE, "Warm for ten seconds: light on", _WARM, "setOn"),
            _rule(_QUIET_RULE, "Door closed for a minute: light off", _QUIET, "setOff"),
            {
                "id": _ALARM_RULE,
                "owner": _ADMINISTRATOR,
                "application": _APPLICATION,
                "name": "Warm garden: alarm",
                "rule": {"if": {"and": [_WARM]}, "alarm": {"severity": "warning", "text": _WARM_TEXT}},
            },
        ],
        "scenes": [
            {
                "id": _SCENE,
                "owner": _ADMINISTRATOR,
                "application": _APPLICATION,
                "name": "Good night",
                "actions": [{"ddid": {"selector": "every", "dtid": _LIGHT}, "action": "setOff"}],
            }
        ],
    }


#: Its devices are observed for the temperature; `/developer` says what else they offer.
_LWM2M_TYPE: Mapping[str, Any] = {
    "unique_name": _LWM2M_BOARD,
    "name": "LWM2M Board",
    "description": "A board whose values come as messages, by the paths of its Manifest",
    "organization": _ORGANIZATION,
    "published": False,
    "manifest": {
        "messageFormat": "json",
        "fields": [
            {"name": "temperature", "valueClass": "Double", "unit": "SI.CELSIUS", "lwm2m": "/3303/0/5700"},
        ],
        "actions": [{"name": "reboot", "lwm2m": {"execute": "/3/0/4"}}],
    },
}
_WARM: Mapping[str, Any] = {
    "sdid": _DEVICES[1].id,
    "field": "temperature",
    "operator": ">",
    "operand": {"value": 21},
    "duration": {"value": 10, "acceptUpdate": True},
}
_WARM_TEXT: Mapping[str, Any] = {
    "concat": [
        {"value": "The garden has "},
        {"valueFrom": {"sdid": _DEVICES[1].id, "field": "temperature"}},
        {"value": " degrees"},
    ]
}
_PINNED: Mapping[str, Any] = {
    "name": "Home",
    "tiles": [
        {"kind": "chart", "did": _DEVICES[1].id, "field": "temperature", "range": "hour", "wide": True},
        {"kind": "value", "did": _DEVICES[1].id, "field": "temperature"},
        {"kind": "action", "title": "Light on", "did": _DEVICES[0].id, "action": "setOn", "parameters": {}},
        {"kind": "scene", "title": "Good night", "sceneId": _SCENE},
    ],
}
_QUIET: Mapping[str, Any] = {
    "sdid": _DEVICES[5].id,
    "field": "open",
    "operator": "=",
    "operand": {"value": False},
    "duration": {"value": 60, "acceptUpdate": False},
}


def _rule(id_: str, name: str, condition: Mapping[str, Any], action: str) -> Mapping[str, Any]:
    """A rule that switches the kitchen light."""
    return {
        "id": id_,
        "owner": _ADMINISTRATOR,
        "application": _APPLICATION,
        "name": name,
        "rule": {"if": {"and": [condition]}, "then": [{"ddid": _DEVICES[0].id, "action": action}]},
    }


async def _pin(services: Services) -> None:
    """Make the administrator's board, unless there is one."""
    user = await services.core.database.read(lambda tx: tx.accounts.user_by_email(_ADMINISTRATOR))
    if user is not None and not await services.boards.boards.of(user):
        await services.boards.boards.create(user, _PINNED)


async def _edge_token(services: Services, state: Path) -> Path:
    """The file with the token of a store that may forward here; it is renewed in every run."""
    path = state / "edge.token"
    try:
        _, token = await services.forwarding.book.renew(_EDGE)
    except NotFound:
        new = NewEdge(_EDGE, _ADMINISTRATOR, _ORGANIZATION, EDGE_DEVICES)
        _, token = await services.forwarding.book.add(new)
    path.touch(mode=0o600)
    path.write_text(f"{token}\n", encoding="ascii")
    return path


async def _device_token(services: Services, device_id: str) -> str:
    device = await services.devices.registry.find(device_id)
    token = await services.core.database.read(lambda tx: tx.devices.token_of(device.key))
    if token is None:
        raise CommandError(f"the demo's device {device_id} has no token: delete the state directory to start over")
    return services.core.vault.open(token.sealed)


async def _simulate_at(device: _Device, token: str, output: int | None, address: Address, ended: trio.Event) -> None:
    await _simulate(device, address, token, ended, output)


async def _simulate(device: _Device, address: Address, token: str, stopping: trio.Event, output: int | None) -> None:
    """Run a simulated device in a process of its own, until the daemon begins to stop. Its errors are shown.

    The daemon is not cancelled together with the process: it has to save its state.
    """
    command = [sys.executable, "-P", "-m", "protocols.cli", "simulate", "--protocol", str(device.protocol)]
    command += [
        "--address",
        str(address),
        "--device",
        device.id,
        "--type",
        device.simulated_as or device.type,
        "--label",
        device.name,
    ]
    # The token is in the environment, because process lists show arguments.
    async with trio.open_nursery() as nursery:
        # Nothing is written to the pipe. It closes when the demo ends, also when the demo is killed.
        start = partial(
            trio.run_process,
            [*command, "--period", "2", "--until-stdin-ends"],
            env={**os.environ, "TRUNKLINE_TOKEN": token},
            stdin=subprocess.PIPE,
            stdout=output,
            check=False,
        )
        await nursery.start(start)
        await stopping.wait()
        nursery.cancel_scope.cancel()


def _introduction(
    settings: Settings,
    addresses: Mapping[str, Address],
    report: ProvisionReport,
    user_token: str,
    tokens: Mapping[str, str],
    link: str,
    about_nodes: Sequence[str] = (),
) -> list[str]:
    """Some 30 lines that begin and end with the link to the console. docs/first-steps.md goes on from here."""
    http, mqtt = addresses["http"], addresses["mqtt"]
    passwords = [one.value for one in report.generated if one.key == "password"]
    password = passwords[0] if passwords else "(was shown when this state directory was new)"
    yours = next(device for device in _DEVICES if device.protocol is None)
    variables = {
        "URL": f"http://{http}",
        "WS_URL": f"ws://{http}",
        "ACCOUNTS": f"http://{http}/accounts",
        "HOST": mqtt.host,
        "MQTT_PORT": mqtt.port,
        "COAP_PORT": addresses["coap"].port,
        "TOKEN": user_token,
        "DEVICE": yours.id,
        "DEVICE_TOKEN": tokens[yours.id],
    }
    offering = (
        [f"  LWM2M     Balcony board offers more than its Manifest has: http://{http}/developer, Use these"]
        if "lwm2m_dtls" in addresses
        else []
    )
    if settings.home_assistant:  # not with several nodes: open topics are in the memory of one
        offering.append(
            f"  Home      Home Assistant finds all devices: integration MQTT, broker {mqtt.host}, port {mqtt.port},"
            " DEVICE below as user, DEVICE_TOKEN as password"
        )
    lwm2m = f"   LWM2M (DTLS) {addresses['lwm2m_dtls']}" if "lwm2m_dtls" in addresses else ""
    simulated = ", ".join(device.name for device in _DEVICES if _LISTENERS.get(device.protocol or "", "") in addresses)
    own = " and ".join(device.name for device in _DEVICES if device.protocol is None)
    return [
        "",
        "Trunkline demo. Ctrl-C ends it.",
        "",
        f"  Console   {link}",
        "            (signs you in once, within a quarter of an hour)",
        f"  Sign in   {_ADMINISTRATOR}, password {password}",
        f"  Listens   HTTP {http}   MQTT {mqtt}   CoAP {addresses['coap']}{lwm2m}",
        *about_nodes,
        *offering,
        f"  Devices   simulated: {simulated}; yours to try: {own}",
        f"  Watch     http://{http}/v1.1/live misses nothing; http://{http}/v1.1/values is for Prometheus",
        f"  Assistant trunkline mcp --url http://{http}, with the TOKEN below: http://{http}/docs/assistants",
        f"  My data   trunkline export --url http://{http}, with the TOKEN below: http://{http}/docs/my-data",
        f"  State     {settings.state_dir}",
        "",
        "Paste these lines into another terminal: variables for all examples, then send, read, and publish over MQTT.",
        "",
        "export " + " ".join(f"{name}={shlex.quote(str(value))}" for name, value in variables.items()),
        *_EXAMPLES,
        "",
        f"More to try: http://{http}/docs/first-steps",
        f"Console:     {link}",
        "",
    ]


#: The same lines as in README.md.
_EXAMPLES = tuple(
    """
curl -s -X POST $URL/v1.1/messages -H "Authorization: Bearer $TOKEN" \
-d '{"sdid":"'$DEVICE'","data":{"state":true,"intensity":80}}'
curl -s "$URL/v1.1/messages/last?sdids=$DEVICE" -H "Authorization: Bearer $TOKEN"
mosquitto_pub -h $HOST -p $MQTT_PORT -q 1 -u $DEVICE -P $DEVICE_TOKEN \
-t /v1.1/messages/$DEVICE -m '{"state":true,"intensity":40}'
""".strip().splitlines()
)
