"""`trunkline statistics`: the counters of a running daemon, and the disk space that its messages take."""

from pathlib import Path
from typing import Any

import click
import msgspec

from protocols.cli.administration import ask_daemon
from protocols.cli.options import config_option


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@config_option
def statistics(as_json: bool, config: Path | None) -> None:
    """Print the counters of the running daemon: the store, refusals, limits, ingest, connections, disk use, mails."""
    found = ask_daemon(config, "statistics", {}, dict[str, Any])
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    for part, counters in found.items():
        click.echo(part)
        for name, value in counters.items():
            click.echo(f"  {name.replace('_', ' '):<26}{_text(name, value):>16}")


def _text(name: str, value: float | str | list[str]) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value / 1024**2:,.1f} MiB" if "bytes" in name.split("_") else f"{value:,}"
