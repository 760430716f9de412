"""`trunkline app` and `trunkline token`: applications, their secrets, and tokens for scripts (reference 27.10)."""

import re
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import trio

from broker.ids import new_id
from config.loading import load_settings
from protocols.cli.administration import administer, json_option, print_lines, printable
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.failures import CommandError
from protocols.cli.options import config_option
from protocols.control.lines import ApplicationLine
from protocols.errors import require_store

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LIFE: Final = re.compile(r"([1-9][0-9]{0,6})([smhd])")


@click.group()
def app() -> None:
    """Applications of a running or a stopped daemon."""


@app.command("list")
@json_option
@config_option
def list_applications(as_json: bool, config: Path | None) -> None:
    """List the applications by name: id, name, methods."""
    found = administer(config, "app list", {}, list[ApplicationLine])
    print_lines(found, lambda one: f"{one.id}  {printable(one.name):<32}{', '.join(one.methods)}", as_json=as_json)


@app.command()
@click.argument("application")
@config_option
def secret(application: str, config: Path | None) -> None:
    """Print the client secret of APPLICATION (id or name). The audit log notes it."""
    click.echo(administer(config, "app secret", {"application": application}, str))


@click.group()
def token() -> None:
    """Tokens for scripts."""


@token.command()
@click.option("--app", "application", help="The application, by id or name; needed if there are several.")
@click.option("--user", "--for", "user", metavar="E-MAIL", help="A token of this user; else of the application itself.")
@click.option("--device", help="The token of a device (id or name): a new one, which ends the former one.")
@click.option("--expires", metavar="N[s|m|h|d]", help="How long it lives; not for devices. Default: 1d")
@config_option
def new(
    application: str | None, user: str | None, device: str | None, expires: str | None, config: Path | None
) -> None:
    """Make a token, and print it: this is the only time that it can be seen.

    A token of a user counts as their sign-in through the application.
    """
    if device is not None:
        if application or user or expires:
            raise CommandError("--device takes no --app, --user and --expires: its token lives until it is replaced", 2)
        click.echo(administer(config, "device rotate", {"device": device}, str))
        return
    if application is None:
        application = _only_application(config, user)
    click.echo(_new(application, user, expires or "1d", config))


def _only_application(config: Path | None, user: str | None) -> str:
    """The application of a user token that names none."""
    if user is None:
        raise CommandError("name --app, --user or --device", 2)
    found = administer(config, "app list", {}, list[ApplicationLine])
    if len(found) != 1:
        names = ", ".join(printable(one.name) for one in found) or "none yet"
        raise CommandError(f"name the application with --app: {names}", 2)
    return found[0].id


def _new(application: str, user: str | None, expires: str, config: Path | None) -> str:
    from protocols.cli.provision import apply_document  # noqa: PLC0415 - the other commands do not need it

    match = _LIFE.fullmatch(expires)
    if match is None:
        raise CommandError(f"--expires: expected seconds, minutes, hours or days as in 12h, got {expires!r}", 2)
    value = new_id()
    entry: dict[str, Any] = {"application": application, "value": value}
    entry |= {"expires_in": int(match[1]) * _SECONDS[match[2]]} | ({} if user is None else {"user": user})
    with failures_reported():
        settings = load_settings(config)
        require_store(settings)
        trio.run(partial(apply_document, settings, {"tokens": [entry]}, dry_run=False))
    return value
