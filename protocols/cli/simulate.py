"""`trunkline simulate`: one simulated device, for demonstrations and for testing a gateway."""

import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

import click

from broker.device_types.examples import load_examples
from config.settings import Address
from protocols.cli.administration import administer
from protocols.cli.failures import CommandError
from protocols.cli.options import config_option
from protocols.cli.simulated.readings import readings_of
from protocols.cli.simulated.simulation import LinkLostError, RefusedError, Simulation
from protocols.control.lines import DeviceLine

_PROTOCOLS = ("mqtt", "websocket", "http", "coap", "lwm2m")
_ID: Final = re.compile(r"[0-9a-f]{32}")
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0


@click.command()
@click.option("--protocol", type=click.Choice(_PROTOCOLS), required=True)
@click.option("--address", metavar="HOST:PORT", required=True, help="Where the daemon listens for this protocol.")
@click.option("--device", required=True, help="Its id; or a name that one device of this machine's daemon has.")
@click.option("--type", "type_name", default="example.smart_light", show_default=True, help="A shipped device type.")
@click.option(
    "--period", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Seconds between messages."
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many acknowledged messages.")
@click.option(
    "--until-stdin-ends", is_flag=True, help="End when standard input ends, with the process that started this one."
)
@click.option("--label", help="The name of the device in the output, instead of what --device says.")
@config_option
def simulate(
    protocol: str,
    address: str,
    device: str,
    type_name: str,
    period: float,
    count: int | None,
    label: str | None,
    until_stdin_ends: bool,
    config: Path | None,
) -> None:
    """Send plausible messages as a device and print the Actions it receives.

    The device's token is read from the environment variable TRUNKLINE_TOKEN, because process lists show arguments.
    """
    token = os.environ.get("TRUNKLINE_TOKEN")
    if not token:
        raise CommandError("TRUNKLINE_TOKEN must hold the device's token", 2)
    try:
        where = Address.parse(address)
    except ValueError as error:
        raise CommandError(f"--address: {error}", 2) from error
    example = next((one for one in load_examples() if one.unique_name == type_name), None)
    if example is None:
        known = ", ".join(one.unique_name for one in load_examples())
        raise CommandError(f"--type: there is no example {type_name!r} (allowed: {known})", 2)
    if not _ID.fullmatch(device):
        device, label = administer(config, "device show", {"device": device}, DeviceLine).id, label or device
    readings = readings_of(example.manifest, device)
    simulation = Simulation(where.host, where.port, device, token, readings, period, count, label or device)
    if until_stdin_ends:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    # Import the client of this protocol only.
    run: Callable[[Simulation], None] = import_module(f"protocols.cli.simulated.{protocol}").run
    _persist(run, simulation)
    click.echo(f"{simulation.label} sent {simulation.sent} messages")


def _end_with_stdin() -> None:
    """End with the parent: its pipe closes, also when it is killed."""
    sys.stdin.buffer.read()
    os._exit(0)


def _persist(run: Callable[[Simulation], None], simulation: Simulation) -> None:
    """Connect again, with longer and longer pauses, until the simulation is finished."""
    pause, sent_before = _FIRST_PAUSE_SECONDS, 0
    while not simulation.is_finished:
        try:
            run(simulation)
        except RefusedError as error:
            raise CommandError(f"{simulation.label} was refused: {error}") from error
        except LinkLostError as error:
            if simulation.sent > sent_before:
                pause, sent_before = _FIRST_PAUSE_SECONDS, simulation.sent
            click.echo(f"{simulation.label}: {error}; next attempt in {pause:.1f} s", err=True)
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads devices, guards nothing
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
