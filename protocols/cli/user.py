"""`trunkline user invite`: a mail with which somebody opens an account, whether others may or not."""

from functools import partial
from pathlib import Path
from typing import Any

import click
import trio

from config.logging import configure_logging
from config.settings import load_settings
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.provision import apply_document, describe


@click.group()
def user() -> None:
    """People who have an account, or are to have one."""


@user.command()
@click.argument("email")
@click.option("--organization", help="The organization that they will belong to, by name.")
@click.option("--role", type=click.Choice(["administrator", "developer", "viewer"]), help="What they will be there.")
@click.option("--again", is_flag=True, help="Send a new mail, although an earlier invitation is still good.")
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="The daemon's configuration file.")
def invite(email: str, organization: str | None, role: str | None, again: bool, config: Path | None) -> None:
    """Invite EMAIL to open an account; prints the link, too. Inviting somebody twice changes nothing.

    Works on a stopped daemon's state and, through its control socket, on a running one.
    """
    entry: dict[str, Any] = {"email": email, "again": again}
    entry |= {key: value for key, value in (("organization", organization), ("role", role)) if value is not None}
    with failures_reported():
        settings = load_settings(config)
        configure_logging("warning", settings.log.format)
        report = trio.run(partial(apply_document, settings, {"invitations": [entry]}, dry_run=False))
    for line in describe(report):
        click.echo(line)
