"""`trunkline user`: invites people to open an account, and helps users who cannot sign in any more."""

from functools import partial
from pathlib import Path
from typing import Any

import click
import trio

from config.loading import load_settings
from protocols.cli.administration import administer, json_option, print_lines, printable
from protocols.cli.anywhere import run_anywhere
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.failures import CommandError
from protocols.cli.options import config_option
from protocols.control.lines import UserLine


@click.group()
def user() -> None:
    """People who have an account, or are invited to open one."""


@user.command("list")
@json_option
@config_option
def list_users(as_json: bool, config: Path | None) -> None:
    """List the users by e-mail address: id, address, user name, full name, who did not prove it, who is disabled."""
    print_lines(administer(config, "user list", {}, list[UserLine]), _line, as_json=as_json)


def _line(one: UserLine) -> str:
    state = "" if one.is_verified else "  (address not proved)"
    state += "  (disabled)" if one.is_disabled else ""
    return f"{one.id}  {one.email:<32}{one.name:<20}{printable(one.full_name)}{state}"


@user.command("disable")
@click.argument("name")
@config_option
def disable_user(name: str, config: Path | None) -> None:
    """End the sessions and tokens of the user NAME, who cannot sign in until they are enabled. Their devices go on."""
    found = administer(config, "user disable", {"user": name}, UserLine)
    click.echo(f"{found.id}  {found.email}: disabled")


@user.command("enable")
@click.argument("name")
@config_option
def enable_user(name: str, config: Path | None) -> None:
    """Let the user NAME (e-mail address, id or user name) sign in again."""
    found = administer(config, "user enable", {"user": name}, UserLine)
    click.echo(f"{found.id}  {found.email}: enabled")


@user.command("delete")
@click.argument("name")
@click.option("--even-last-administrator", is_flag=True, help="Also when an organization has no administrator then.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@config_option
def delete_user(name: str, *, even_last_administrator: bool, yes: bool, config: Path | None) -> None:
    """Delete the user NAME (e-mail address, id or user name) with all that the service has of them.

    Devices, messages, rules, shares, exports and tokens go at once and for good; only the audit log keeps the id.
    Backups that were made before still have the user. Works with a running and with a stopped daemon.
    """
    found = administer(config, "user show", {"user": name}, UserLine)
    about = f"{found.id}  {found.email}  {printable(found.full_name)}"
    if not yes:
        click.confirm(f"{about}\nDelete this user and everything of theirs for good?", abort=True)
    administer(config, "user delete", {"user": found.id, "even_last": even_last_administrator}, UserLine)
    click.echo(f"{found.id}: deleted")


@user.command()
@click.argument("email")
@click.option("--organization", help="The new user's organization, by name.")
@click.option("--role", type=click.Choice(["administrator", "developer", "viewer"]), help="Their role in it.")
@click.option("--again", is_flag=True, help="Send a new mail, also when an earlier invitation is still valid.")
@config_option
def invite(email: str, organization: str | None, role: str | None, again: bool, config: Path | None) -> None:
    """Invite EMAIL to open an account, and print the link. A second invitation of the same address changes nothing.

    Works on a stopped daemon's state and, through its control socket, on a running one.
    """
    from protocols.cli.provision import apply_document, describe  # noqa: PLC0415 - the other commands do not need it

    entry: dict[str, Any] = {"email": email, "again": again}
    entry |= {key: value for key, value in (("organization", organization), ("role", role)) if value is not None}
    with failures_reported():
        settings = load_settings(config)
        report = trio.run(partial(apply_document, settings, {"invitations": [entry]}, dry_run=False))
    for line in describe(report):
        click.echo(line)


@user.command()
@click.argument("name")
@click.option("--second-factor", is_flag=True, help="Ask for no code any more, until they set up a new one.")
@click.option("--password", is_flag=True, help="Print a link to set a new password, for half an hour.")
@config_option
def reset(name: str, *, second_factor: bool, password: bool, config: Path | None) -> None:
    """Reset how the user NAME (e-mail address or user name) signs in.

    Without the second factor, their browser sessions end at once; with a new password, when they have set it. Make sure
    first that it is really this person who asks. Works with a running and with a stopped daemon.
    """
    if not (second_factor or password):
        raise CommandError("say what to reset: --second-factor, --password or both", 2)
    if password:
        click.echo(administer(config, "user reset password", {"user": name}, str))
    if not second_factor:
        return
    with failures_reported():
        settings = load_settings(config)
        had_one = trio.run(run_anywhere, settings, "user reset second-factor", {"name": name})
    click.echo(f"{name}: the second factor is removed" if had_one else f"{name} has no second factor")
