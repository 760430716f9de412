"""`trunkline edge`: the stores that forward to this one (reference 30.2)."""

from pathlib import Path

import click

from config.limits import EDGE_DEVICES, EDGE_DEVICES_MAX
from protocols.cli.administration import ask_daemon, json_option, print_lines, printable
from protocols.cli.options import config_option
from protocols.control.lines import EdgeLine, NewEdgeToken, OriginLine


@click.group()
def edge() -> None:
    """Stores that forward to this one."""


@edge.command("list")
@json_option
@config_option
def list_edges(as_json: bool, config: Path | None) -> None:
    """List the edges: name, owner of their devices, devices, messages, and up to which position they have sent."""
    print_lines(ask_daemon(config, "edge list", {}, list[EdgeLine]), _line, as_json=as_json)


@edge.command()
@click.argument("name")
@click.option("--owner", required=True, metavar="USER", help="Whose its devices are: e-mail address, id or user name.")
@click.option("--types", default="", metavar="ORGANIZATION", help="Make device types that are not known here in it.")
@click.option(
    "--devices",
    type=click.IntRange(1, EDGE_DEVICES_MAX),
    default=EDGE_DEVICES,
    show_default=True,
    help="How many devices it may make.",
)
@config_option
def add(name: str, owner: str, types: str, devices: int, config: Path | None) -> None:
    """Let the store NAME forward to this one, and print its token, which is not shown again."""
    arguments = {"edge": name, "owner": owner, "types": types, "devices": devices}
    click.echo(ask_daemon(config, "edge add", arguments, NewEdgeToken).token)


@edge.command("token")
@click.argument("name")
@config_option
def renew_edge_token(name: str, config: Path | None) -> None:
    """Print a new token of the edge NAME; the former one ends."""
    click.echo(ask_daemon(config, "edge token", {"edge": name}, NewEdgeToken).token)


@edge.command()
@click.argument("name")
@config_option
def remove(name: str, config: Path | None) -> None:
    """Take nothing more from the edge NAME. Its devices and their messages stay."""
    ask_daemon(config, "edge remove", {"edge": name}, type(None))
    click.echo(f"{name}: removed")


@edge.command("accept")
@click.argument("name")
@click.option("--new-positions", is_flag=True, help="The edge was restored: it gives its positions to other messages.")
@config_option
def accept_edge(name: str, new_positions: bool, config: Path | None) -> None:
    """Take the next batch of the edge NAME although it does not follow the last one, after a backup was restored."""
    upto = ask_daemon(config, "edge accept", {"edge": name, "new_positions": new_positions}, int)
    click.echo(f"{name}: the next batch is taken; everything up to position {upto} of the edge is here")


@edge.command()
@click.argument("mid")
@click.option("--edge", "name", default="", metavar="NAME", help="MID is one of this edge.")
@config_option
def origin(mid: str, name: str, config: Path | None) -> None:
    """Print the edge that has sent the message MID, and the mid there; with --edge the mid here."""
    found = ask_daemon(config, "edge origin", {"mid": mid, "edge": name}, OriginLine)
    click.echo(f"here {found.mid}  at {printable(found.edge)} {found.remote_mid}")


def _line(one: EdgeLine) -> str:
    seen = "never seen" if one.seen_on is None else f"up to {one.upto}"
    return (
        f"{one.name}  {printable(one.owner)}  {one.devices} of {one.devices_max} devices  {one.messages:,} messages"
        f"  {one.dropped:,} dropped  {seen}"
    )
