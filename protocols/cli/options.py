"""Options that several commands take."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from config.shown_command import with_configuration
from protocols.cli.failures import CommandError

Command = TypeVar("Command", bound=Callable[..., Any])

cafile_option = click.option(
    "--cafile",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Trust the certificate authorities in this PEM file, and no others.",
)


def _note(_context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
    with_configuration(path)
    return path


def config_option_with(about: str) -> Callable[[Command], Command]:
    """The option, with its help."""
    file = click.Path(dir_okay=False, path_type=Path)
    return click.option("--config", type=file, help=about, callback=_note)


config_option = config_option_with("The daemon's configuration file.")


def trusting(cafile: Path | None) -> ssl.SSLContext:
    """A client's TLS context that trusts the authorities in `cafile`, by default the system's. Raises CommandError."""
    try:
        return ssl.create_default_context(cafile=cafile)
    except OSError as error:  # ssl.SSLError, too
        raise CommandError(f"--cafile {cafile}: no certificates in PEM", 2) from error
