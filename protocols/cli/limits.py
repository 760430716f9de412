"""`trunkline limits`: what is used of rate limits and quotas, and when each opens again (reference 27.16)."""

from datetime import UTC, datetime
from pathlib import Path

import click

from protocols.cli.administration import administer, json_option, print_lines, printable
from protocols.cli.options import config_option
from protocols.control.lines import LimitLine


@click.command()
@click.option("--used-up", is_flag=True, help="Only what is used up.")
@json_option
@config_option
def limits(*, used_up: bool, as_json: bool, config: Path | None) -> None:
    """List what devices, users, applications and organizations have used on this day and in this month.

    What is used up comes first, with the time from which it is open again. Works with a running and a stopped daemon.
    """
    found = [one for one in administer(config, "limits", {}, list[LimitLine]) if one.is_used_up or not used_up]
    print_lines(found, _line, as_json=as_json)
    if not found and not as_json:
        click.echo("nothing is used up" if used_up else "nothing is used yet")


def _line(one: LimitLine) -> str:
    limit = "?" if one.limit is None else "unlimited" if one.limit < 0 else f"{one.limit:,}"
    opens = datetime.fromtimestamp(one.opens_on / 1000, UTC).isoformat(timespec="minutes")
    state = "used up, open again" if one.is_used_up else "resets"
    return f"{one.what:<22}{f'{one.used:,} of {limit}':<28}{state} {opens}  {printable(one.whose)}"
