"""`trunkline payments`: those that the operator confirms or declines, and those whose money has to go back."""

from pathlib import Path

import click
import msgspec

from broker.monetization.payments import REFUND_DUE
from protocols.cli.asking import ask_daemon
from protocols.monetization_commands import OperatorsPayment

_config = click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), help="The daemon's configuration file."
)


@click.group(invoke_without_command=True)
@_config
@click.pass_context
def payments(context: click.Context, config: Path | None) -> None:
    """List the payments that have to be sent back, and those that are not decided yet."""
    if context.invoked_subcommand is None:
        for payment in msgspec.convert(ask_daemon(config, "payments", {}), list[OperatorsPayment]):
            click.echo(_line(payment))


def _line(payment: OperatorsPayment) -> str:
    line = f"{payment.reference}  {payment.price}  {payment.tier}  device {payment.device}"
    if payment.status == REFUND_DUE:
        line += f"  to be refunded: {payment.processor} {payment.external_id or ''}".rstrip()
    return line


def _tell(config: Path | None, command: str, **arguments: str) -> None:
    payment = msgspec.convert(ask_daemon(config, command, arguments), OperatorsPayment)
    click.echo(f"{payment.reference}  {payment.status}")


@payments.command()
@click.argument("reference")
@_config
def accept(reference: str, config: Path | None) -> None:
    """The money is there: the device gets its paid tier."""
    _tell(config, "payments decide", reference=reference, outcome="accepted")


@payments.command()
@click.argument("reference")
@_config
def decline(reference: str, config: Path | None) -> None:
    """Nothing was paid."""
    _tell(config, "payments decide", reference=reference, outcome="declined")


@payments.command()
@click.argument("reference")
@_config
def refunded(reference: str, config: Path | None) -> None:
    """The money was sent back."""
    _tell(config, "payments refunded", reference=reference)
