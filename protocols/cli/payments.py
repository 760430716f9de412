"""`trunkline payments`: the payments that wait for the operator, who confirms or declines them."""

from pathlib import Path

import click
import msgspec

from protocols.cli.asking import ask_daemon
from protocols.monetization_commands import OperatorsPayment

_config = click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), help="The daemon's configuration file."
)


@click.group(invoke_without_command=True)
@_config
@click.pass_context
def payments(context: click.Context, config: Path | None) -> None:
    """List the payments that are not decided yet."""
    if context.invoked_subcommand is None:
        for payment in msgspec.convert(ask_daemon(config, "payments", {}), list[OperatorsPayment]):
            click.echo(f"{payment.reference}  {payment.price}  {payment.tier}  device {payment.device}")


def _decide(config: Path | None, reference: str, outcome: str) -> None:
    answer = ask_daemon(config, "payments decide", {"reference": reference, "outcome": outcome})
    payment = msgspec.convert(answer, OperatorsPayment)
    click.echo(f"{payment.reference}  {payment.status}")


@payments.command()
@click.argument("reference")
@_config
def accept(reference: str, config: Path | None) -> None:
    """The money is there: the device gets its paid tier."""
    _decide(config, reference, "accepted")


@payments.command()
@click.argument("reference")
@_config
def decline(reference: str, config: Path | None) -> None:
    """Nothing was paid."""
    _decide(config, reference, "declined")
