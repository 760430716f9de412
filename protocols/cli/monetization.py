"""`trunkline plans` and `trunkline payments`: the operator's decisions about plans and payments (reference 27)."""

from pathlib import Path

import click

from broker.monetization.statuses import REFUND_DUE
from protocols.cli.administration import ask_daemon, json_option, print_lines
from protocols.cli.options import config_option
from protocols.control.lines import OperatorsPayment, OperatorsPlan

_comments = click.option("--comments", default="", help="What the owners of the device type are told.")


@click.group(invoke_without_command=True)
@json_option
@config_option
@click.pass_context
def plans(context: click.Context, *, as_json: bool, config: Path | None) -> None:
    """List the plans that are not decided yet."""
    if context.invoked_subcommand is None:
        found = ask_daemon(config, "plans", {}, list[OperatorsPlan])
        print_lines(found, _plan_lines, as_json=as_json)


def _plan_lines(plan: OperatorsPlan) -> str:
    lines = [_plan_line(plan)]
    for tier in plan.tiers:
        messages = "no limit" if tier.message_limit < 0 else f"{tier.message_limit:,} messages a day"
        lines.append(f"  {tier.type:<5} {tier.name}: {tier.cost}, {messages}")
    return "\n".join(lines)


def _plan_line(plan: OperatorsPlan) -> str:
    return f"{plan.device_type}  version {plan.version}  {plan.status}"


def _decide_plan(config: Path | None, device_type: str, version: int, decision: str, comments: str = "") -> None:
    arguments = {"device_type": device_type, "version": version, "decision": decision, "comments": comments}
    click.echo(_plan_line(ask_daemon(config, "plans decide", arguments, OperatorsPlan)))


@plans.command("review")
@click.argument("device_type")
@click.argument("version", type=int)
@config_option
def review_plan(device_type: str, version: int, config: Path | None) -> None:
    """Mark a plan as under review."""
    _decide_plan(config, device_type, version, "PENDING")


@plans.command("approve")
@click.argument("device_type")
@click.argument("version", type=int)
@_comments
@config_option
def approve_plan(device_type: str, version: int, comments: str, config: Path | None) -> None:
    """Put a plan into force. Devices that have a tier stay on it."""
    _decide_plan(config, device_type, version, "APPROVED", comments)


@plans.command("reject")
@click.argument("device_type")
@click.argument("version", type=int)
@_comments
@config_option
def reject_plan(device_type: str, version: int, comments: str, config: Path | None) -> None:
    """Reject a plan."""
    _decide_plan(config, device_type, version, "REJECTED", comments)


@click.group(invoke_without_command=True)
@json_option
@config_option
@click.pass_context
def payments(context: click.Context, *, as_json: bool, config: Path | None) -> None:
    """List the payments that have to be refunded, and the undecided ones."""
    if context.invoked_subcommand is None:
        found = ask_daemon(config, "payments", {}, list[OperatorsPayment])
        print_lines(found, _payment_line, as_json=as_json)


def _payment_line(payment: OperatorsPayment) -> str:
    line = f"{payment.reference}  {payment.price}  {payment.tier}  device {payment.device}"
    if payment.status == REFUND_DUE:
        line += f"  to be refunded: {payment.processor} {payment.external_id or ''}".rstrip()
    return line


def _decide_payment(config: Path | None, command: str, **arguments: str) -> None:
    payment = ask_daemon(config, command, arguments, OperatorsPayment)
    click.echo(f"{payment.reference}  {payment.status}")


@payments.command("accept")
@click.argument("reference")
@config_option
def accept_payment(reference: str, config: Path | None) -> None:
    """Record that the money has arrived: the device gets its paid tier."""
    _decide_payment(config, "payments decide", reference=reference, outcome="accepted")


@payments.command("decline")
@click.argument("reference")
@config_option
def decline_payment(reference: str, config: Path | None) -> None:
    """Record that nothing was paid."""
    _decide_payment(config, "payments decide", reference=reference, outcome="declined")


@payments.command("refunded")
@click.argument("reference")
@config_option
def note_refund(reference: str, config: Path | None) -> None:
    """Record that the money was sent back."""
    _decide_payment(config, "payments refunded", reference=reference)
