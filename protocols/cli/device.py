"""`trunkline device`: the devices of a daemon, their tokens, and switching them off (reference 27.10)."""

import csv
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import click

from protocols.cli.administration import administer, json_option, print_lines, printable
from protocols.cli.failures import CommandError
from protocols.cli.label_sheet import label_sheet
from protocols.cli.options import config_option
from protocols.control.lines import LIST_MAX, DeviceLine, ImportedLine


@click.group()
def device() -> None:
    """Devices of a running or a stopped daemon."""


@device.command("list")
@click.option("--owner", help="Only of this user: e-mail address, id or user name.")
@click.option("--limit", type=click.IntRange(1, LIST_MAX), default=LIST_MAX, show_default=True)
@json_option
@config_option
def list_devices(owner: str | None, limit: int, as_json: bool, config: Path | None) -> None:
    """List the devices by name: id, availability, type, owner, name."""
    found = administer(config, "device list", {"owner": owner, "limit": limit}, list[DeviceLine])
    print_lines(found, _line, as_json=as_json)


@device.command()
@click.argument("device_id", metavar="DEVICE")
@json_option
@config_option
def show(device_id: str, as_json: bool, config: Path | None) -> None:
    """Print what is known of DEVICE (an id, or a name that no other device has)."""
    found = administer(config, "device show", {"device": device_id}, DeviceLine)
    print_lines([found], _details, as_json=as_json)


@device.command("token")
@click.argument("device_id", metavar="DEVICE")
@config_option
def show_device_token(device_id: str, config: Path | None) -> None:
    """Print the token of DEVICE. The audit log notes it."""
    click.echo(administer(config, "device token", {"device": device_id}, str))


@device.command("rotate")
@click.argument("device_id", metavar="DEVICE")
@config_option
def rotate_token(device_id: str, config: Path | None) -> None:
    """Give DEVICE a new token, and print it. The former one ends at once, and so do its connections."""
    click.echo(administer(config, "device rotate", {"device": device_id}, str))


@device.command("disable")
@click.argument("device_id", metavar="DEVICE")
@config_option
def disable_device(device_id: str, config: Path | None) -> None:
    """Close the connections of DEVICE, and take no messages of it until it is enabled."""
    _switch(config, device_id, enabled=False)


@device.command("enable")
@click.argument("device_id", metavar="DEVICE")
@config_option
def enable_device(device_id: str, config: Path | None) -> None:
    """Take the messages of DEVICE again."""
    _switch(config, device_id, enabled=True)


@device.command("delete")
@click.argument("device_id", metavar="DEVICE")
@click.confirmation_option(prompt="Delete the device?")
@config_option
def delete_device(device_id: str, config: Path | None) -> None:
    """Delete DEVICE. For 30 days, provisioning it with its id restores it and its messages (reference 6.1)."""
    found = administer(config, "device delete", {"device": device_id}, DeviceLine)
    click.echo(f"{found.id}  {printable(found.name)}: deleted")


@device.command("import")
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--owner", required=True, help="Whose devices they are until they are claimed: e-mail address, id or user name."
)
@click.option(
    "--labels", type=click.Path(dir_okay=False, path_type=Path), help="Write a sheet of labels with QR codes, as SVG."
)
@click.option("--accounts-url", help="Where people sign in, for the links of the labels; by default as in mails.")
@json_option
@config_option
def import_devices(
    file: Path, owner: str, labels: Path | None, accounts_url: str | None, as_json: bool, config: Path | None
) -> None:
    """Make the devices of FILE, a CSV file with the columns name, type and, if you like, id, vdid and token.

    Prints them as CSV with their tokens and the links of their labels; whoever opens a link first owns the device.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} cannot be read: {error}", 2) from error
    arguments = {"text": text, "owner": owner, "accounts": accounts_url}
    _print_labels(
        labels, lambda: administer(config, "device import", arguments, list[ImportedLine], about=file), as_json
    )


@device.command("labels")
@click.argument("names", metavar="DEVICE...", nargs=-1, required=True)
@click.option(
    "--labels", type=click.Path(dir_okay=False, path_type=Path), help="Write a sheet of labels with QR codes, as SVG."
)
@click.option("--accounts-url", help="Where people sign in, for the links of the labels; by default as in mails.")
@json_option
@config_option
def new_labels(
    names: tuple[str, ...], labels: Path | None, accounts_url: str | None, as_json: bool, config: Path | None
) -> None:
    """Make new labels for imported devices that nobody has claimed. Their former labels are of no use any more.

    Prints them as CSV; the tokens of the devices stay as they are.
    """
    arguments = {"devices": list(names), "accounts": accounts_url}
    _print_labels(labels, lambda: administer(config, "device labels", arguments, list[ImportedLine]), as_json)


def _print_labels(labels: Path | None, make: Callable[[], list[ImportedLine]], as_json: bool) -> None:
    problem: OSError | None = None
    with _made(labels) as sheet:
        found = make()
        if sheet is not None:
            try:
                sheet.write(label_sheet(found))
                sheet.flush()
            except OSError as error:
                problem = error
    # Also without the sheet: the devices are made, and only these lines still have the codes of their labels.
    if not as_json:
        click.echo("id,name,type,token,code,link")
    print_lines(found, _imported, as_json=as_json)
    if problem is not None:
        reason = problem.strerror or str(problem)
        raise CommandError(
            f"The devices are made, but {labels} cannot be written whole: {reason}. Keep the lines above."
        )


@contextmanager
def _made(path: Path | None) -> Iterator[IO[str] | None]:
    """A new file that only its owner reads, before anything is imported. It goes again when the import fails."""
    if path is None:
        yield None
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise CommandError(f"{path} cannot be made: {error.strerror}", 2) from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _imported(found: ImportedLine) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(
        (found.id, found.name, found.type, found.token, found.code, found.link)
    )
    return line.getvalue()


def _switch(config: Path | None, device_id: str, *, enabled: bool) -> None:
    found = administer(config, f"device {'enable' if enabled else 'disable'}", {"device": device_id}, DeviceLine)
    click.echo(f"{found.id}  {printable(found.name)}: {'enabled' if found.enabled else 'disabled'}")


def _state(found: DeviceLine) -> str:
    return found.availability if found.enabled else "disabled"


def _line(found: DeviceLine) -> str:
    return f"{found.id}  {_state(found):<9}{found.device_type:<32}{found.owner:<32}{printable(found.name)}"


def _details(found: DeviceLine) -> str:
    seen, made = ("-" if at is None else _time(at) for at in (found.last_time_online, found.created_on))
    rows = {
        "id": found.id,
        "name": printable(found.name),
        "type": found.device_type,
        "owner": found.owner,
        "enabled": "yes" if found.enabled else "no",
        "availability": found.availability,
        "last online": seen,
        "created": made,
    }
    return "\n".join(f"{name:<14}{value}" for name, value in rows.items())


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
