"""`trunkline plans`: the monetization plans that wait for the operator, and what the operator says to them."""

from pathlib import Path

import click
import msgspec

from protocols.cli.asking import ask_daemon
from protocols.monetization_commands import OperatorsPlan

_config = click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), help="The daemon's configuration file."
)
_comments = click.option("--comments", default="", help="What the owners of the device type are told.")


@click.group(invoke_without_command=True)
@_config
@click.pass_context
def plans(context: click.Context, config: Path | None) -> None:
    """List the plans that are not decided yet."""
    if context.invoked_subcommand is not None:
        return
    for plan in msgspec.convert(ask_daemon(config, "plans", {}), list[OperatorsPlan]):
        click.echo(_line(plan))
        for tier in plan.tiers:
            messages = "no limit" if tier.message_limit < 0 else f"{tier.message_limit:,} messages a day"
            click.echo(f"  {tier.type:<5} {tier.name}: {tier.cost}, {messages}")


def _line(plan: OperatorsPlan) -> str:
    return f"{plan.device_type}  version {plan.version}  {plan.status}"


def _decide(config: Path | None, device_type: str, version: int, decision: str, comments: str = "") -> None:
    arguments = {"device_type": device_type, "version": version, "decision": decision, "comments": comments}
    click.echo(_line(msgspec.convert(ask_daemon(config, "plans decide", arguments), OperatorsPlan)))


@plans.command()
@click.argument("device_type")
@click.argument("version", type=int)
@_config
def review(device_type: str, version: int, config: Path | None) -> None:
    """Say that a plan is being looked at."""
    _decide(config, device_type, version, "PENDING")


@plans.command()
@click.argument("device_type")
@click.argument("version", type=int)
@_comments
@_config
def approve(device_type: str, version: int, comments: str, config: Path | None) -> None:
    """The plan counts from now on. Devices that have a tier stay on it."""
    _decide(config, device_type, version, "APPROVED", comments)


@plans.command()
@click.argument("device_type")
@click.argument("version", type=int)
@_comments
@_config
def reject(device_type: str, version: int, comments: str, config: Path | None) -> None:
    """The plan does not count."""
    _decide(config, device_type, version, "REJECTED", comments)
