"""`trunkline forward`: the upstreams that this store forwards to (reference 30)."""

from pathlib import Path

import click

from broker.forwarding.status import ForwardStatus
from protocols.cli.administration import ask_daemon, json_option, print_lines, printable
from protocols.cli.options import config_option


@click.group()
def forward() -> None:
    """Upstreams that get what this store gets."""


@forward.command("list")
@json_option
@config_option
def list_forwards(as_json: bool, config: Path | None) -> None:
    """List the upstreams: name, address, messages sent, how far behind, and the problem, if there is one."""
    print_lines(ask_daemon(config, "forward list", {}, list[ForwardStatus]), _line, as_json=as_json)


@forward.command()
@click.argument("name")
@click.argument("position", type=click.IntRange(min=0))
@config_option
def rewind(name: str, position: int, config: Path | None) -> None:
    """Have the upstream NAME get everything after POSITION of the log again, after a backup of it was restored. The
    refusal of the upstream says the position."""
    ask_daemon(config, "forward rewind", {"forward": name, "position": position}, ForwardStatus)
    click.echo(f"{name}: sends everything after position {position}")


def _line(one: ForwardStatus) -> str:
    behind = f"{one.behind:,} rows, {one.behind_seconds:.0f} s behind" if one.behind else "nothing behind"
    about = f"{one.name}  {one.to}  {one.state}  {one.sent:,} messages  {one.actions:,} Actions  {behind}"
    return f"{about}\n    {printable(one.problem)}" if one.problem else about
