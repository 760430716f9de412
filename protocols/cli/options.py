"""Options that several commands take."""

from pathlib import Path

import click

config_option = click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), help="The daemon's configuration file."
)
