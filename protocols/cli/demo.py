"""`trunkline demo`: a daemon with an embedded store, demo data and simulated devices; nothing else to install."""

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import trio

from broker.device_management.configuration import ConfigurationChange
from broker.device_types.examples import load_examples
from broker.ids import new_id
from broker.provisioning import ProvisionReport
from broker.services import Services
from config.logging import configure_logging
from config.settings import Address, Coap, ConsoleSettings, Http, Log, Lwm2m, Mqtt, Outbound, Settings
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.failures import CommandError
from protocols.cli.serve import announce
from protocols.daemon import run_daemon

_DEFAULT_STATE = Path("~/.local/state/trunkline-demo")
_HOST = "127.0.0.1"
_ORGANIZATION = "example"  # owner of the shipped device types (reference 8.7)
_ADMINISTRATOR = "admin@example.org"
_APPLICATION = "Demo"
_LIGHT, _WEATHER, _BOARD = "example.smart_light", "example.weather_station", "example.managed_board"
_DOOR = "example.door_sensor"
_DAY_SECONDS = 86_400
_LISTENERS = {"mqtt": "mqtt", "websocket": "http", "http": "http", "lwm2m": "lwm2m_dtls"}


@dataclass(frozen=True, slots=True)
class _Device:
    id: str
    name: str
    type: str
    protocol: str | None  # None: not simulated, for the user of the demo


_DEVICES = (
    _Device("d0" * 15 + "01", "Kitchen light", _LIGHT, "mqtt"),
    _Device("d0" * 15 + "02", "Garden weather", _WEATHER, "websocket"),
    _Device("d0" * 15 + "03", "Roof weather", _WEATHER, "http"),
    _Device("d0" * 15 + "04", "Your light", _LIGHT, None),
    _Device("d0" * 15 + "05", "Workshop board", _BOARD, "lwm2m"),
    _Device("d0" * 15 + "06", "Front door", _DOOR, None),
)
_SCENE = "5c" * 16
_WARM_RULE, _QUIET_RULE = "1e" * 16, "2e" * 16


@click.command()
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=_DEFAULT_STATE,
    show_default=True,
    help="Where the demo keeps its store; delete it to start over.",
)
@click.option("--http-port", type=click.IntRange(0, 65535), default=8080, show_default=True)
@click.option("--mqtt-port", type=click.IntRange(0, 65535), default=1883, show_default=True)
@click.pass_context
def demo(ctx: click.Context, state: Path, http_port: int, mqtt_port: int) -> None:
    """Serve with demo data and simulated devices, on this machine only, and print commands to try."""
    settings = Settings(
        state_dir=state.expanduser(),
        http=Http(bind=Address(_HOST, _port(ctx, "http_port", http_port))),
        mqtt=Mqtt(bind=Address(_HOST, _port(ctx, "mqtt_port", mqtt_port)), topics="open", persistent_sessions="on"),
        coap=Coap(bind=Address(_HOST, 0)),
        lwm2m=Lwm2m(dtls_bind=Address(_HOST, 0)),
        outbound=Outbound(allow_private_addresses=True),  # for callbacks on this machine
        console=ConsoleSettings(operators=(_ADMINISTRATOR,)),
        log=Log(level="warning"),
    )
    configure_logging(settings.log.level, settings.log.format)
    with failures_reported():
        trio.run(_run, settings)


def _port(ctx: click.Context, option: str, port: int) -> int:
    """A port from the command line is used as it is; a default port that is taken is replaced by a free one."""
    if ctx.get_parameter_source(option) is not click.core.ParameterSource.DEFAULT:
        return port
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            click.echo(f"Port {port} is taken; using a free one. --{option.replace('_', '-')} chooses another.")
            return 0
    return port


async def _run(settings: Settings) -> None:
    async with trio.open_nursery() as simulators:

        async def ready(services: Services, addresses: Mapping[str, Address]) -> None:
            user_token = new_id()
            report = await services.provisioning.apply(_document(user_token))
            board = await services.device_types.catalog.find(_BOARD)
            with_properties = ConfigurationChange(device_properties_enabled=True)
            await services.device_management.configurations.change(board, with_properties)
            tokens = {device.id: await _device_token(services, device.id) for device in _DEVICES}
            await announce(services, addresses)
            code = await services.accounts.console.new_code(_ADMINISTRATOR)
            link = f"http://{addresses['http']}/console/enter?code={code}"
            click.echo("\n".join(_introduction(settings, addresses, report, user_token, tokens, link)))
            stopping = services.core.life.stopping
            for device in _DEVICES:
                address = addresses.get(_LISTENERS.get(device.protocol or "", ""))
                if address is not None:  # LWM2M needs GnuTLS
                    simulators.start_soon(_simulate, device, address, tokens[device.id], stopping)

        await run_daemon(settings, ready=ready)
    click.echo("The demo has stopped; its data is kept.")


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
        ],
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
            _rule(_QUIET_RULE, "Nobody at the door for a minute: light off", _QUIET, "setOff"),
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


_WARM: Mapping[str, Any] = {
    "sdid": _DEVICES[1].id,
    "field": "temperature",
    "operator": ">",
    "operand": {"value": 21},
    "duration": {"value": 10, "acceptUpdate": True},
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


async def _device_token(services: Services, device_id: str) -> str:
    device = await services.devices.registry.find(device_id)
    token = await services.core.database.read(lambda tx: tx.devices.token_of(device.key))
    if token is None:
        raise CommandError(f"the demo's device {device_id} has no token: delete the state directory to begin anew")
    return services.core.vault.open(token.sealed)


async def _simulate(device: _Device, address: Address, token: str, stopping: trio.Event) -> None:
    """Run a simulated device in a process of its own, until the daemon begins to stop.

    The daemon is not cancelled together with the process: it has to save its state.
    """
    command = [sys.executable, "-P", "-m", "protocols.cli", "simulate", "--protocol", str(device.protocol)]
    command += ["--address", str(address), "--device", device.id, "--type", device.type, "--label", device.name]
    # The token is in the environment, because process lists show arguments.
    async with trio.open_nursery() as nursery:
        # Nothing is written to the pipe. It closes when the demo ends, also when the demo is killed.
        start = partial(
            trio.run_process,
            [*command, "--period", "2", "--until-stdin-ends"],
            env={**os.environ, "TRUNKLINE_TOKEN": token},
            stdin=subprocess.PIPE,
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
) -> list[str]:
    http, mqtt = addresses["http"], addresses["mqtt"]
    passwords = [one.value for one in report.generated if one.key == "password"]
    password = passwords[0] if passwords else "(was shown when this state directory was new)"
    yours = next(device for device in _DEVICES if device.protocol is None)
    api, authorization = f"http://{http}/v1.1", f"Authorization: Bearer {user_token}"
    message = msgspec.json.encode({"sdid": yours.id, "data": {"state": True, "intensity": 80}}).decode()
    misspelt = msgspec.json.encode({"sdid": yours.id, "data": {"state": True, "intensty": 80}}).decode()
    data = '{"state":true,"intensity":40}'
    action = msgspec.json.encode({"ddid": _DEVICES[0].id, "data": {"actions": [{"name": "setOn"}]}}).decode()
    source = {"did": _DEVICES[1].id, "field": "temperature"}
    parameters = {"sourceToPredict": source, "predictIn": 60}
    definition = {"data": {"sources": [source]}, "type": "prediction", "parameters": parameters}
    model = msgspec.json.encode(definition).decode()
    door = msgspec.json.encode({"sdid": _DEVICES[5].id, "data": {"open": False}}).decode()
    invitation = {"email": _ADMINISTRATOR, "invitationType": "participant"}
    trial = msgspec.json.encode(
        {"name": "Sleep and light", "deviceTypes": [{"dtid": _LIGHT}], "invitations": [invitation]}
    ).decode()
    json = ["-H", "Content-Type: application/json"]
    light = ["-h", mqtt.host, "-p", str(mqtt.port), "-u", yours.id, "-P", tokens[yours.id]]
    return [
        "",
        "Trunkline demo. Ctrl-C ends it.",
        "",
        f"  REST and live feed  {api}",
        f"  Console             {api.removesuffix('/v1.1')}/",
        f"  Documentation       {api.removesuffix('/v1.1')}/docs",
        f"  Metrics             {api.removesuffix('/v1.1')}/metrics",
        f"  MQTT                {mqtt}",
        f"  CoAP                {addresses['coap']}",
        *([f"  LWM2M (DTLS)        {addresses['lwm2m_dtls']}"] if "lwm2m_dtls" in addresses else []),
        f"  State directory     {settings.state_dir}",
        f"  Administrator       {_ADMINISTRATOR}",
        f"  Password            {password}",
        f"  User token          {user_token}  (valid for a day)",
        "",
        "Devices",
        *(f"  {device.name:<18}  {device.id}  {_player(device)}" for device in _DEVICES),
        "",
        "Send a message as your light",
        _line("curl", "-s", "-X", "POST", f"{api}/messages", "-H", authorization, *json, "-d", message),
        "",
        "The same with a field that the Manifest does not have: the answer warns, and only the other field is stored",
        _line("curl", "-s", "-X", "POST", f"{api}/messages", "-H", authorization, *json, "-d", misspelt),
        "",
        "Read the last messages of all devices",
        _line(
            "curl",
            "-s",
            f"{api}/messages/last?count=5&sdids={','.join(one.id for one in _DEVICES)}",
            "-H",
            authorization,
        ),
        "",
        "Send an Action to the kitchen light; it prints what it receives here",
        _line("curl", "-s", "-X", "POST", f"{api}/actions", "-H", authorization, *json, "-d", action),
        "",
        "Two rules switch the kitchen light: on when the garden was warm for ten seconds, off when nobody was at the",
        "door for a minute. Somebody is at the door now:",
        _line("curl", "-s", "-X", "POST", f"{api}/messages", "-H", authorization, *json, "-d", door),
        "How the rules stand, and why they triggered or did not:",
        _line("curl", "-s", f"{api}/users/self/rules", "-H", authorization),
        *(
            f"  TRUNKLINE_STATE_DIR={shlex.quote(str(settings.state_dir))} "
            + _line(_tail(), "rule", "explain", rule, "--since", "1m").strip()
            for rule in (_WARM_RULE, _QUIET_RULE)
        ),
        "",
        "Activate the scene Good night: all lights go off",
        _line("curl", "-s", "-X", "POST", f"{api}/scenes/{_SCENE}", "-H", authorization),
        "",
        "Let a model learn the garden's temperature of the next minute; it is ready when it has 50 values",
        _line("curl", "-s", "-X", "POST", f"{api}/ml/models", "-H", authorization, *json, "-d", model),
        "",
        "Begin a trial of lights; the invitation is a file in the outbox of the state directory",
        _line("curl", "-s", "-X", "POST", f"{api}/trials", "-H", authorization, *json, "-d", trial),
        "",
        "Publish over MQTT as your light",
        _line("mosquitto_pub", *light, "-q", "1", "-t", f"/v1.1/messages/{yours.id}", "-m", data),
        "",
        "Topics of your own, on the same listener: retain a message, and get it",
        _line("mosquitto_pub", *light, "-q", "1", "-r", "-t", "home/kitchen/lamp", "-m", "on"),
        _line("mosquitto_sub", *light, "-v", "-C", "1", "-t", "home/#"),
        "",
        "Watch messages as they arrive",
        f"  TRUNKLINE_TOKEN={user_token} " + _line(_tail(), "tail", "--live", f"ws://{http}/v1.1/live").strip(),
        "",
        "Get messages as signed calls of a callback on this machine",
        f"  TRUNKLINE_TOKEN={user_token} " + _line(_tail(), "receive", "--port", "9000", "--service", api).strip(),
        "",
        "Open the console: this link signs you in once, within a quarter of an hour",
        f"  {link}",
        "",
    ]


def _player(device: _Device) -> str:
    return "yours to try" if device.protocol is None else f"simulated over {device.protocol}"


def _line(*words: str) -> str:
    """A command that can be pasted into a shell."""
    return "  " + shlex.join(words)


def _tail() -> str:
    """The command that started this program, which need not be on the path."""
    return sys.argv[0] if Path(sys.argv[0]).name == "trunkline" else "trunkline"
