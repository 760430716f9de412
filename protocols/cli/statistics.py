"""`trunkline statistics`: what a running daemon does and holds, down to the disk its messages take."""

from pathlib import Path

import click

from protocols.cli.asking import ask_daemon


@click.command()
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="The daemon's configuration file.")
def statistics(config: Path | None) -> None:
    """Ask the running daemon for its counters: the store, ingest, connections, retention and disk use, mails."""
    for part, counters in ask_daemon(config, "statistics", {}).items():
        click.echo(part)
        for name, value in counters.items():
            click.echo(f"  {name.replace('_', ' '):<26}{_text(name, value):>16}")


def _text(name: str, value: float) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value / 1024**2:,.1f} MiB" if name.endswith("_bytes") else f"{value:,}"
