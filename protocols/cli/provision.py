"""`trunkline provision`: create or update what a file describes, on a stopped or a running daemon."""

import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import trio

from broker.nesting import check_nesting
from broker.provisioning import Generated, ProvisionReport
from config.logging import configure_logging
from config.settings import Settings, load_settings
from protocols.cli.anywhere import run_anywhere
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.failures import CommandError
from protocols.cli.options import config_option


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@config_option
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
def provision(file: Path, config: Path | None, dry_run: bool) -> None:
    """Create or update what FILE describes; running it twice changes nothing.

    Works on a stopped daemon's state and, through its control socket, on a running one. On any error nothing is
    applied.
    """
    with failures_reported(about=file):
        settings = load_settings(config)
        configure_logging("warning", settings.log.format)
        document = read_provision_file(file)
        report = trio.run(partial(apply_document, settings, document, dry_run=dry_run))
    for line in describe(report):
        click.echo(line)


def read_provision_file(path: Path) -> dict[str, Any]:
    """Parse the file, and replace the names of Manifest and CA files, which are relative to it, by their contents.

    Firmware files may be large: the daemon reads them, so their names become absolute.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: not valid TOML: {error}") from error
    device_types = document.get("device_types")
    for index, entry in enumerate(device_types if isinstance(device_types, list) else ()):
        if isinstance(entry, dict) and isinstance(entry.get("manifest"), str):
            place = f"{path}: device_types[{index}].manifest"
            entry["manifest"] = _read_manifest(path.parent / entry["manifest"], place)
        if isinstance(entry, dict) and isinstance(entry.get("ca"), str):
            entry["ca"] = _read_text(path.parent / entry["ca"], f"{path}: device_types[{index}].ca")
    firmware = document.get("firmware")
    for entry in firmware if isinstance(firmware, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("file"), str):
            entry["file"] = str((path.parent / entry["file"]).absolute())
    return document


def _read_manifest(path: Path, place: str) -> object:
    try:
        content = path.read_bytes()
        check_nesting(content)
        return msgspec.json.decode(content)
    except OSError as error:
        raise CommandError(f"{place}: {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CommandError(f"{place}: {path}: not valid JSON: {error}") from error


def _read_text(path: Path, place: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{place}: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{place}: {path}: not a text") from error


async def apply_document(settings: Settings, document: dict[str, Any], *, dry_run: bool) -> ProvisionReport:
    """Apply a provision document to the store, or send it to the daemon that holds the store.

    Raises:
        StateInUseError: another process holds the store and does not answer.
        ValidationFailed: the document is refused, with findings.
    """
    answer = await run_anywhere(settings, "provision", {"document": document, "dry_run": dry_run})
    return msgspec.convert(answer, ProvisionReport)


def describe(report: ProvisionReport) -> list[str]:
    """The report as lines of text."""
    lines = ["Dry run: nothing was changed."] if report.dry_run else []
    kinds = ("created", "changed", "unchanged")
    for table, counts in report.tables.items():
        lines.append(f"{table:<14}" + "".join(f"{getattr(counts, kind):>7} {kind}" for kind in kinds))
    if report.generated and report.dry_run:
        lines += ["", "Would be generated:"]
    elif report.generated:
        lines += ["", "Generated; secrets, tokens and passwords are shown only this once:"]
    return lines + _table(report.generated)


def _table(generated: list[Generated]) -> list[str]:
    """Aligned rows, unless there are none."""
    rows = [(one.table, one.name, one.key, one.value or "") for one in generated]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
