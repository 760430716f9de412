"""Options that several commands take."""

import ssl
from pathlib import Path

import click

from protocols.cli.failures import CommandError

cafile_option = click.option(
    "--cafile",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Trust the certificate authorities in this PEM file, and no others.",
)
config_option = click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), help="The daemon's configuration file."
)


def trusting(cafile: Path | None) -> ssl.SSLContext:
    """For a client: trusts the authorities in `cafile`, without it those of the system. Raises CommandError."""
    try:
        return ssl.create_default_context(cafile=cafile)
    except OSError as error:  # ssl.SSLError, too
        raise CommandError(f"--cafile {cafile}: no certificates in PEM", 2) from error
