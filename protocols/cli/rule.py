"""`trunkline rule`: why a rule of the running daemon triggered or did not, and what it would have done."""

import re
import time
from pathlib import Path

import click

from protocols.cli.administration import ask_daemon
from protocols.cli.options import config_option
from protocols.cli.sparklines import time_text
from protocols.control.lines import ExplainedTime, ReplayedTime

_UNITS_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SINCE = re.compile(r"([1-9][0-9]{0,3})([mhd])")
_MARKS = {True: "holds   ", False: "does not", None: "unknown "}


class _Since(click.ParamType[int]):
    """`10m`, `2h` or `1d`, as milliseconds."""

    name = "N[m|h|d]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _SINCE.fullmatch(str(value))
        if match is None:
            self.fail(f"expected minutes, hours or days such as 10m, 2h or 1d, got {value!r}", param, ctx)
        return int(match[1]) * _UNITS_MS[match[2]]


@click.group()
def rule() -> None:
    """Rules of the running daemon."""


@rule.command()
@click.argument("rule_id", metavar="RULE")
@click.option("--message", metavar="MID", help="Explain one message.")
@click.option("--since", type=_Since(), default="10m", show_default=True, help="Explain all messages of this time.")
@config_option
def explain(rule_id: str, message: str | None, since: int, config: Path | None) -> None:
    """Say why RULE (an id) triggered or did not: which condition held, with the values that were seen."""
    arguments: dict[str, object] = {"rule": rule_id}
    if message is None:
        now_ms = int(time.time() * 1000)
        arguments |= {"start": now_ms - since, "end": now_ms}
    else:
        arguments["message"] = message
    answer = ask_daemon(config, "rule explain", arguments, ExplainedTime)
    for one in answer.found:
        outcome = "triggers" if one.triggers else "does not trigger"
        earlier = "" if one.counts else "  (before the rule was made or changed)"
        click.echo(f"{time_text(one.at)}  {one.mid or 'the time'}  {outcome}{earlier}")
        for condition in one.conditions:
            click.echo(f"    {_MARKS[condition.held]}  {condition.field}  {condition.text}")
    if not answer.found:
        click.echo("No message of this time concerns the rule.")
    if answer.until is not None:
        click.echo(f"The explanations ended at {time_text(answer.until)}: there is more than are made at once.")


@rule.command()
@click.argument("rule_id", metavar="RULE")
@click.option("--since", type=_Since(), default="1d", show_default=True, help="How far to go back.")
@config_option
def replay(rule_id: str, since: int, config: Path | None) -> None:
    """Run RULE (an id) over the messages of this time, and print what it would have sent. Nothing is sent."""
    now_ms = int(time.time() * 1000)
    arguments = {"rule": rule_id, "start": now_ms - since, "end": now_ms}
    answer = ask_daemon(config, "rule replay", arguments, ReplayedTime)
    for one in answer.triggers:
        click.echo(f"{time_text(one.at)}  {one.mid or 'the time'}")
        for action in one.actions:
            click.echo(f"    {action if action.isprintable() else repr(action)}")
    more = f", the first {len(answer.triggers)} are shown" if len(answer.triggers) < answer.triggered else ""
    click.echo(f"{answer.messages} messages, triggered {answer.triggered} times{more}")
    if answer.until is not None:
        click.echo(f"The replay ended at {time_text(answer.until)}: there is more than it reads at once.")
