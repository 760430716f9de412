"""`trunkline provision`: applies a provision file to a stopped daemon's state, or through a running daemon."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import trio

from broker.device_types.examples import load_examples
from broker.errors import Finding, ValidationFailed
from broker.nesting import check_nesting
from broker.provisioning import Generated, ProvisionReport
from config.loading import load_settings
from config.settings import Settings
from config.toml import read_toml
from protocols.cli.administration import printable
from protocols.cli.anywhere import dry_run_anywhere, run_anywhere
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.failures import CommandError, leaves
from protocols.cli.options import config_option

_NAMES_SHOWN: Final = 10
_VALUE_CHARACTERS: Final = 60


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
@config_option
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@click.option("--force", is_flag=True, help="Also replace Manifests that others approved since the last run.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of the file, and do nothing else.")
def provision(
    file: Path | None, config: Path | None, *, dry_run: bool, force: bool, as_json: bool, schema: bool
) -> None:
    """Create or update what FILE describes; running it twice changes nothing. Nothing is ever removed.

    Works on a stopped daemon's state and, through its control socket, on a running one. On any error nothing is
    applied, and every error is named.
    """
    if schema:
        from broker.provisioning.schema import document_schema  # noqa: PLC0415 - takes the daemon

        click.echo(json.dumps(document_schema(), indent=2))
        return
    if file is None:
        raise CommandError("name the file, or ask for its --schema", 2)
    with failures_reported(about=file):
        settings = load_settings(config)
        document, unreadable = read_provision_file(file)
        asked = partial(_apply_all, settings, document, unreadable)
        report = trio.run(partial(asked, dry_run=dry_run, force=force, survey=True))
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
        return
    for line in describe(report):
        click.echo(line)


async def _apply_all(
    settings: Settings, document: dict[str, Any], unreadable: list[Finding], **options: bool
) -> ProvisionReport:
    """Apply the document; with files that cannot be read, only find out what else is wrong with it."""
    if not unreadable:
        return await apply_document(settings, document, **options)
    found = list(unreadable)
    try:
        await apply_document(settings, document, **options | {"dry_run": True})
    except* ValidationFailed as group:  # of the nursery in which a stopped daemon's store is open
        named = {finding.field for finding in unreadable}
        failures = [error for error in leaves(group) if isinstance(error, ValidationFailed)]
        found += [finding for error in failures for finding in error.findings if finding.field not in named]
    raise ValidationFailed(tuple(found))


def read_provision_file(path: Path) -> tuple[dict[str, Any], list[Finding]]:
    """Parse the file, and replace the names of Manifest and CA files, which are relative to it, by their contents.

    Returns the document without the files that cannot be read, and a finding for each of those. Firmware files may be
    large: the daemon reads them, so their names become absolute.
    """
    try:
        document = read_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"{path}: not valid TOML: {error}") from error
    findings: list[Finding] = []
    device_types = document.get("device_types")
    for index, entry in enumerate(device_types if isinstance(device_types, list) else ()):
        for key, read in (("manifest", _read_manifest), ("ca", _read_text)):
            if isinstance(entry, dict) and isinstance(entry.get(key), str):
                try:
                    entry[key] = read(path.parent, entry[key])
                except ValueError as error:
                    del entry[key]
                    findings.append(Finding(f"device_types[{index}].{key}", (str(error),)))
    firmware = document.get("firmware")
    for entry in firmware if isinstance(firmware, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("file"), str):
            entry["file"] = str((path.parent / entry["file"]).absolute())
    return document, findings


def _read_manifest(folder: Path, name: str) -> object:
    """The Manifest in a file, or that of the shipped type with this name. Raises ValueError with a text for the
    operator."""
    path = folder / name
    if not path.exists() and (shipped := next((one for one in load_examples() if one.unique_name == name), None)):
        return msgspec.json.decode(shipped.manifest_document)
    try:
        content = path.read_bytes()
        check_nesting(content)
        return msgspec.json.decode(content)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not valid JSON: {error}") from error


def _read_text(folder: Path, name: str) -> str:
    """Raises ValueError with a text for the operator."""
    path = folder / name
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not valid UTF-8: {error}") from error


async def apply_document(
    settings: Settings, document: Mapping[str, Any], *, dry_run: bool, force: bool = False, survey: bool = False
) -> ProvisionReport:
    """Apply a provision document to the store, or send it to the daemon that holds the store.

    A dry run changes nothing, also not the state directory.

    Raises:
        StateInUseError: another process holds the store and does not answer.
        ValidationFailed: the document is refused, with findings.
    """
    arguments = {"document": document, "dry_run": dry_run, "force": force, "survey": survey}
    run = dry_run_anywhere if dry_run else run_anywhere
    return msgspec.convert(await run(settings, "provision", arguments), ProvisionReport)


def describe(report: ProvisionReport) -> list[str]:
    """The report as lines of text."""
    lines = ["Dry run: nothing was changed."] if report.dry_run else []
    kinds = ("created", "changed", "unchanged")
    for table, counts in report.tables.items():
        lines.append(f"{table:<14}" + "".join(f"{getattr(counts, kind):>7} {kind}" for kind in kinds))
    lines += _part("Would change:" if report.dry_run else "Changed:", _changed(report))
    lines += _part("To look at:", (f"{one.table}  {printable(one.name)}: {one.text}" for one in report.notices))
    lines += _part("Not in the file, and left as it is:", _left(report))
    if report.generated and report.dry_run:
        lines += ["", "Would be generated:"]
    elif report.generated:
        lines += ["", "Generated; secrets, tokens and passwords are shown only this once:"]
    return lines + _table(report.generated)


def _part(title: str, found: Iterator[str]) -> list[str]:
    lines = [f"  {line}" for line in found]
    return ["", title, *lines] if lines else []


def _changed(report: ProvisionReport) -> Iterator[str]:
    for one in report.changes:
        about = f"{one.table}  {printable(one.name)}"
        if one.created:
            yield f"{about}: created"
        for key in one.keys:
            yield f"{about}: {key.key}: {_value(key.before)} -> {_value(key.after)}"


def _left(report: ProvisionReport) -> Iterator[str]:
    for table, names in report.not_in_file.items():
        shown = ", ".join(printable(name) for name in islice(names, _NAMES_SHOWN))
        more = len(names) - _NAMES_SHOWN
        yield f"{table}  {shown}{f' and {more} more (--json names them)' if more > 0 else ''}"


def _value(value: object) -> str:
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
    return printable(text if len(text) <= _VALUE_CHARACTERS else f"{text[:_VALUE_CHARACTERS]}…")


def _table(generated: list[Generated]) -> list[str]:
    """Aligned rows, unless there are none."""
    rows = [(one.table, one.name, one.key, one.value or "") for one in generated]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
