"""`trunkline type`: the device types of a running daemon, their Manifests, and the messages that failed with them."""

from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from broker.device_types.overview import (
    FAILURES_MAX,
    FailedMessage,
    FailedMessages,
    FailedReading,
    TypeOverview,
    UploadedManifest,
)
from broker.nesting import check_nesting
from protocols.cli.administration import ask_daemon, json_option, print_lines
from protocols.cli.failures import CommandError
from protocols.cli.options import config_option


@click.group()
def type() -> None:  # noqa: A001 - the name of the command
    """Device types of the running daemon and their Manifests."""


@type.command("list")
@json_option
@config_option
def list_types(*, as_json: bool, config: Path | None) -> None:
    """List the device types: unique name, id, the version in use, and versions that wait for approval."""
    found = ask_daemon(config, "type list", {}, list[TypeOverview])
    print_lines(found, _type_line, as_json=as_json)


def _type_line(found: TypeOverview) -> str:
    waiting = f"  waiting: {', '.join(map(str, found.waiting))}" if found.waiting else ""
    state = "published" if found.published else "private"
    return f"{found.unique_name:<32}{found.id:<36}{state:<11}version {found.latest_version}{waiting}"


@type.command("upload")
@click.argument("device_type", metavar="TYPE")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--approve", is_flag=True, help="Approve the Manifest, also when it has a transform.")
@config_option
def upload_manifest(device_type: str, file: Path, approve: bool, config: Path | None) -> None:
    """Make the Manifest in FILE (JSON) the newest version of TYPE (an id or a unique name)."""
    arguments = {"device_type": device_type, "document": _read_json(file), "approve": approve}
    answer = ask_daemon(config, "type upload", arguments, UploadedManifest, about=file)
    state = "approved" if answer.approved else "waits for approval"
    click.echo(f"version {answer.version}: {state}{'' if answer.is_new else ', as before'}")


@type.command("approve")
@click.argument("device_type", metavar="TYPE")
@click.argument("version", type=click.IntRange(min=1))
@config_option
def approve_manifest(device_type: str, version: int, config: Path | None) -> None:
    """Approve a VERSION of the Manifest of TYPE, so that its devices use it."""
    wanted = {"device_type": device_type, "version": version}
    click.echo(f"version {ask_daemon(config, 'type approve', wanted, UploadedManifest).version}: approved")


@type.command("failures")
@click.argument("device_or_type")
@click.option("--count", type=click.IntRange(1, FAILURES_MAX), default=20, show_default=True)
@json_option
@config_option
def list_failures(device_or_type: str, count: int, *, as_json: bool, config: Path | None) -> None:
    """List the failed messages of a device or of all devices of a type (id or name): newest first, with reasons.

    The first line says how many of them fit the newest version of the Manifest, and are messages now.
    """
    wanted = {"device_or_type": device_or_type, "limit": count}
    found = ask_daemon(config, "type failures", wanted, FailedMessages)
    if found.reading is not None and not as_json:
        click.echo(_reading_line(found.reading))
    print_lines(found.messages, _failure_line, as_json=as_json)


def _reading_line(reading: FailedReading) -> str:
    state = "" if reading.ended_on is not None else ", and more are read"
    return f"Manifest {reading.version}: {reading.fit} of {reading.looked} failed messages of the type fit now{state}"


def _failure_line(failed: FailedMessage) -> str:
    at = datetime.fromtimestamp(failed.received_on / 1000, UTC).isoformat(timespec="milliseconds")
    return f"{at}  {failed.device}  {failed.reason}  {msgspec.json.encode(failed.payload).decode()}"


def _read_json(path: Path) -> object:
    try:
        content = path.read_bytes()
        check_nesting(content)
        return msgspec.json.decode(content)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"{path}: not valid JSON: {error}") from error
