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


def _text(name: str, value: Any) -> str:
    """A number, a word, or a list of them or of things with members, such as stores that forward."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value or "none"
    if isinstance(value, dict):
        return ", ".join(f"{one.replace('_', ' ')} {_text(one, part)}" for one, part in value.items())
    if isinstance(value, list):
        return ("; " if any(isinstance(one, dict) for one in value) else ", ").join(
            _text(name, one) for one in value
        ) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value / 1024**2:,.1f} MiB" if "bytes" in name.split("_") else f"{value:,}"
