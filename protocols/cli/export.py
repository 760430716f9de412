"""`trunkline export` and `trunkline import`: messages as files, and back (reference 10.4 and 10.5)."""

import hashlib
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import httpx

from protocols.cli.failures import CommandError
from protocols.cli.history import device_id_of, rest_answer
from protocols.cli.options import cafile_option, trusting

_SECONDS: Final = 60.0
_FIRST_LOOK_SECONDS: Final = 0.2
_LOOK_SECONDS: Final = 3.0
_TRIES: Final = 30  # of a download that breaks off, without a byte more
_FORMATS: Final = ("csv", "jsonl", "parquet")
_TIMES: Final = ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ")
_url_option = click.option("--url", metavar="URL", default="http://127.0.0.1:8080", show_default=True)


@click.command()
@click.argument("devices", nargs=-1, metavar="[DEVICE]...")
@click.option("--format", "format_", type=click.Choice(_FORMATS), default="csv", show_default=True)
@click.option("--from", "start", metavar="TIME", type=click.DateTime(_TIMES), help="In UTC. Default: everything.")
@click.option("--to", "end", metavar="TIME", type=click.DateTime(_TIMES), help="In UTC. Default: now.")
@click.option(
    "--out", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path), default=Path("trunkline-export")
)
@click.option("--id", "export_id", metavar="EXPORT", help="Fetch an export that was made, or go on fetching it.")
@_url_option
@cafile_option
def export(
    devices: tuple[str, ...],
    format_: str,
    start: datetime | None,
    end: datetime | None,
    out: Path,
    export_id: str | None,
    url: str,
    cafile: Path | None,
) -> None:
    """Write messages into FOLDER: one file for each device type, with a column for each field.

    Each DEVICE is an id or a name; without any it is all devices of the token's user. A token that may read the devices
    is read from the environment variable TRUNKLINE_TOKEN. A download that breaks off goes on where it was.
    """
    with _client(url, cafile) as client:
        if export_id is None:
            export_id = _asked(client, devices, format_, start, end)
            click.echo(f"export {export_id}", err=True)
        status = _finished(partial(rest_answer, client, "GET", f"/messages/export/{export_id}/status"), "export")
        archive = out / f"{export_id}.zip"
        out.mkdir(parents=True, exist_ok=True)
        _download(client, f"/messages/export/{export_id}/result", archive, status["md5"])
        for name in _unpacked(archive, out):
            click.echo(out / name)
        archive.unlink()
    click.echo(f"{status['totalMessages']} messages", err=True)


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--device", help="The device (id or name) of files without a column sdid.")
@_url_option
@cafile_option
def import_(files: tuple[Path, ...], device: str | None, url: str, cafile: Path | None) -> None:
    """Bring messages from FILES of CSV, as `trunkline export` writes them.

    A token of a user who may write on the devices is read from the environment variable TRUNKLINE_TOKEN. Wrong lines
    are named; the others are stored. A file can be brought twice: messages that are there are not stored again.
    """
    is_whole = True
    with _client(url, cafile) as client:
        params = {} if device is None else {"sdid": device_id_of(client, device)}
        for file in files:
            with file.open("rb") as content:
                made = rest_answer(
                    client,
                    "POST",
                    "/messages/import",
                    about=f"{file}: ",
                    params=params,
                    content=content,
                    headers={"Content-Type": "text/csv", "Content-Length": str(file.stat().st_size)},
                )
            state = _finished(partial(_import_state, client, made["data"]["id"]), "import")
            for wrong in state["wrongLines"]:
                click.echo(f"{file}:{wrong['line']}: {wrong['reason']}", err=True)
            click.echo(f"{file}: {state['stored']} stored, {state['present']} present, {state['wrong']} wrong")
            is_whole &= not state["wrong"]
    if not is_whole:
        raise CommandError("some lines are wrong")


def _import_state(client: httpx.Client, id_: str) -> Mapping[str, Any]:
    state: Mapping[str, Any] = rest_answer(client, "GET", f"/messages/import/{id_}/status")["data"]
    return state


def _asked(
    client: httpx.Client, devices: tuple[str, ...], format_: str, start: datetime | None, end: datetime | None
) -> str:
    ids = {"sdids": ",".join(device_id_of(client, device) for device in devices)}
    if not devices:
        ids = {"uids": rest_answer(client, "GET", "/users/self")["data"]["id"]}
    times = {"startDate": _ms(start, 0), "endDate": _ms(end, int(time.time() * 1000))}
    asked = rest_answer(client, "POST", "/messages/export", json=ids | times | {"format": format_})
    return str(asked["data"]["exportId"])


def _ms(given: datetime | None, default: int) -> int:
    return default if given is None else int(given.replace(tzinfo=UTC).timestamp() * 1000)


def _finished(look: Callable[[], Mapping[str, Any]], what: str) -> Mapping[str, Any]:
    """The last state of something that goes on in the background; its progress is told."""
    pause, told = _FIRST_LOOK_SECONDS, None
    while True:
        state = look()
        if state["status"] in {"Failure", "Expired"}:
            reason = state.get("reason", state["status"])
            raise CommandError(f"the {what} has ended: {reason}")
        if state["status"] not in {"Received", "InProgress"}:
            return state
        if (progress := state.get("progress")) is not None and progress != told:
            click.echo(f"{progress} %", err=True)
            told = progress
        time.sleep(pause)
        pause = min(_LOOK_SECONDS, 1.5 * pause)


def _download(client: httpx.Client, path: str, target: Path, md5: str) -> None:
    """Fetch a file, and go on where it broke off, also in an earlier run. Raises CommandError."""
    tries, size = 0, -1
    while True:
        have = target.stat().st_size if target.exists() else 0
        tries, size = (0, have) if have > size else (tries + 1, size)
        try:
            if _fetched(client, path, target, have, md5):
                break
        except httpx.TransportError as error:
            if tries >= _TRIES:
                raise
            click.echo(f"{error or type(error).__name__}: going on at {have} bytes", err=True)
            time.sleep(_LOOK_SECONDS)
    digest = hashlib.md5(usedforsecurity=False)
    with target.open("rb") as file:
        while piece := file.read(1024 * 1024):
            digest.update(piece)
    if digest.hexdigest() != md5:
        target.unlink()
        raise CommandError("what was fetched is not what the service has: fetch it again")


def _fetched(client: httpx.Client, path: str, target: Path, have: int, md5: str) -> bool:
    """Fetch the rest; whether that was all."""
    headers = {"Range": f"bytes={have}-", "If-Range": f'"{md5}"'} if have else {}
    with client.stream("GET", path, headers=headers) as answer:
        if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            return True  # it has all of it
        if not answer.is_success:
            answer.read()
            raise CommandError(f"the archive is refused with {answer.status_code}")
        with target.open("ab" if answer.status_code == httpx.codes.PARTIAL_CONTENT else "wb") as file:
            for piece in answer.iter_bytes():
                file.write(piece)
    return True


def _unpacked(archive: Path, folder: Path) -> list[str]:
    with zipfile.ZipFile(archive) as files:
        names = files.namelist()
        if any(Path(name).name != name for name in names):
            raise CommandError(f"{archive}: a file in it would be outside of {folder}")
        files.extractall(folder)
    return names


@contextmanager
def _client(url: str, cafile: Path | None) -> Iterator[httpx.Client]:
    """Raises CommandError."""
    if not (token := os.environ.get("TRUNKLINE_TOKEN")):
        raise CommandError("TRUNKLINE_TOKEN must hold a token", 2)
    headers, base = {"Authorization": f"bearer {token}"}, f"{url.rstrip('/')}/v1.1"
    try:
        with httpx.Client(base_url=base, headers=headers, timeout=_SECONDS, verify=trusting(cafile)) as client:
            yield client
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CommandError(f"{url}: {error or type(error).__name__}") from error
