"""`trunkline drain`: takes a node out of several (reference 27.25)."""

from pathlib import Path
from typing import Any, Final

import click
import msgspec
import trio

from config.loading import load_settings
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.failures import CommandError
from protocols.cli.options import config_option
from protocols.control.client import ControlFailedError, ControlUnavailableError, send_command

_LOOK_SECONDS: Final = 0.5


class _Standing(msgspec.Struct, frozen=True):
    phase: str
    connections: int
    seconds_left: float
    others: tuple[str, ...]
    is_new: bool = False

    @property
    def text(self) -> str:
        others = ", ".join(self.others) or "no other node"
        match self.phase:
            case "telling":
                return f"tells balancers by /readyz that it leaves, {self.seconds_left:.0f} s more; {others} serve on"
            case "moving":
                return f"moves its connections, {self.seconds_left:.0f} s at most: {self.connections} are left"
        return "stops"


@click.command()
@click.option("--no-wait", is_flag=True, help="Return when it has begun.")
@config_option
def drain(no_wait: bool, config: Path | None) -> None:
    """Move the connections of the running daemon to the other nodes, and end it.

    The daemon says 503 at /readyz for cluster.drain_notice_seconds, then accepts no device, and ends its
    connections within cluster.drain_seconds. SIGTERM does the same. The command waits for the end.
    """
    with failures_reported():
        settings = load_settings(config)
        trio.run(_drain, settings.state_dir, no_wait)


async def _drain(state_dir: Path, no_wait: bool) -> None:
    try:
        standing = await _ask(state_dir, "drain")
    except ControlUnavailableError as error:
        raise CommandError(f"no daemon runs on {state_dir}") from error
    if not standing.is_new:
        click.echo("this node drains already")
    click.echo(standing.text)
    if no_wait:
        return
    shown = standing.phase
    while standing is not None:
        await trio.sleep(_LOOK_SECONDS)
        try:
            standing = await _ask(state_dir, "drain standing")
        except (ControlUnavailableError, ControlFailedError):
            break
        if standing.phase != shown:
            shown = standing.phase
            click.echo(standing.text)
    from protocols.operation.state import holder  # noqa: PLC0415 - the rest needs nothing of the daemon

    while True:
        if holder(state_dir) is None:
            break
        await trio.sleep(_LOOK_SECONDS)
    click.echo("the node has ended")


async def _ask(state_dir: Path, command: str) -> _Standing:
    answer: Any = await send_command(state_dir, command, {})
    return msgspec.convert(answer, _Standing)
