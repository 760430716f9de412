"""`trunkline found`: devices that MQTT clients announce for Home Assistant (reference 16.9)."""

from pathlib import Path

import click

from protocols.cli.administration import ask_daemon, json_option, print_lines, printable
from protocols.cli.options import config_option
from protocols.control.lines import FoundLine


@click.group()
def found() -> None:
    """Devices that MQTT clients of the running daemon announce."""


@found.command("list")
@click.argument("owner", metavar="USER")
@json_option
@config_option
def list_found(owner: str, as_json: bool, config: Path | None) -> None:
    """List what clients of USER (e-mail address, id or user name) announce: id, status, fields, Actions, name, and what
    is not taken over."""
    print_lines(ask_daemon(config, "found list", {"owner": owner}, list[FoundLine]), _line, as_json=as_json)


@found.command("accept")
@click.argument("found_id", metavar="FOUND")
@config_option
def accept_found(found_id: str, config: Path | None) -> None:
    """Make a device of FOUND (an id of the list). Its states are messages from now on."""
    made = ask_daemon(config, "found accept", {"found": found_id}, FoundLine)
    click.echo(f"{made.device}  {printable(made.name)}: accepted")


@found.command()
@click.argument("found_id", metavar="FOUND")
@config_option
def ignore(found_id: str, config: Path | None) -> None:
    """Take no notice of FOUND any more. A device that was made of it stays, and gets no messages."""
    ignored = ask_daemon(config, "found ignore", {"found": found_id}, FoundLine)
    click.echo(f"{ignored.id}  {printable(ignored.name)}: ignored")


def _line(one: FoundLine) -> str:
    about = f"{one.id}  {one.status:8}  {one.fields:3} fields  {one.actions:3} Actions  {printable(one.name)}"
    return "\n".join([about, *(f"    not taken over: {printable(text)}" for text in one.problems)])
