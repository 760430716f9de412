"""`trunkline device`: the devices of a daemon, their tokens, and switching them off (reference 27.10)."""

from datetime import UTC, datetime
from pathlib import Path

import click

from protocols.cli.administration import administer, json_option, print_lines, printable
from protocols.cli.options import config_option
from protocols.control.lines import LIST_MAX, DeviceLine


@click.group()
def device() -> None:
    """Devices of a running or a stopped daemon."""


@device.command("list")
@click.option("--owner", help="Only of this user: e-mail address, id or user name.")
@click.option("--limit", type=click.IntRange(1, LIST_MAX), default=LIST_MAX, show_default=True)
@json_option
@config_option
def list_devices(owner: str | None, limit: int, as_json: bool, config: Path | None) -> None:
    """List the devices by name: id, availability, type, owner, name."""
    found = administer(config, "device list", {"owner": owner, "limit": limit}, list[DeviceLine])
    print_lines(found, _line, as_json=as_json)


@device.command()
@click.argument("device_id", metavar="DEVICE")
@json_option
@config_option
def show(device_id: str, as_json: bool, config: Path | None) -> None:
    """Print what is known of DEVICE (an id, or a name that no other device has)."""
    found = administer(config, "device show", {"device": device_id}, DeviceLine)
    print_lines([found], _details, as_json=as_json)


@device.command()
@click.argument("device_id", metavar="DEVICE")
@config_option
def token(device_id: str, config: Path | None) -> None:
    """Print the token of DEVICE. The audit log notes it."""
    click.echo(administer(config, "device token", {"device": device_id}, str))


@device.command()
@click.argument("device_id", metavar="DEVICE")
@config_option
def rotate(device_id: str, config: Path | None) -> None:
    """Give DEVICE a new token, and print it. The former one ends at once, and so do its connections."""
    click.echo(administer(config, "device rotate", {"device": device_id}, str))


@device.command()
@click.argument("device_id", metavar="DEVICE")
@config_option
def disable(device_id: str, config: Path | None) -> None:
    """Close the connections of DEVICE, and take no messages of it until it is enabled."""
    _switch(config, device_id, enabled=False)


@device.command()
@click.argument("device_id", metavar="DEVICE")
@config_option
def enable(device_id: str, config: Path | None) -> None:
    """Take the messages of DEVICE again."""
    _switch(config, device_id, enabled=True)


@device.command()
@click.argument("device_id", metavar="DEVICE")
@click.confirmation_option(prompt="Delete the device?")
@config_option
def delete(device_id: str, config: Path | None) -> None:
    """Delete DEVICE. For 30 days, provisioning it with its id restores it and its messages (reference 6.1)."""
    found = administer(config, "device delete", {"device": device_id}, DeviceLine)
    click.echo(f"{found.id}  {printable(found.name)}: deleted")


def _switch(config: Path | None, device_id: str, *, enabled: bool) -> None:
    found = administer(config, f"device {'enable' if enabled else 'disable'}", {"device": device_id}, DeviceLine)
    click.echo(f"{found.id}  {printable(found.name)}: {'enabled' if found.enabled else 'disabled'}")


def _state(found: DeviceLine) -> str:
    return found.availability if found.enabled else "disabled"


def _line(found: DeviceLine) -> str:
    return f"{found.id}  {_state(found):<9}{found.device_type:<32}{found.owner:<32}{printable(found.name)}"


def _details(found: DeviceLine) -> str:
    seen, made = ("-" if at is None else _time(at) for at in (found.last_time_online, found.created_on))
    rows = {
        "id": found.id,
        "name": printable(found.name),
        "type": found.device_type,
        "owner": found.owner,
        "enabled": "yes" if found.enabled else "no",
        "availability": found.availability,
        "last online": seen,
        "created": made,
    }
    return "\n".join(f"{name:<14}{value}" for name, value in rows.items())


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
