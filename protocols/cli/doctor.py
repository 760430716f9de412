"""`trunkline doctor`: what is wrong on this machine, and what to do about it."""

import json
from collections.abc import Iterator
from pathlib import Path

import click
from msgspec.structs import asdict

from config.loading import SettingsError, load_settings
from protocols.cli.options import config_option
from protocols.doctor.examination import examine
from protocols.doctor.patient import CheckResult, patient_of


@click.command()
@config_option
@click.option("--unit", default="trunkline.service", show_default=True, help="The unit that runs the daemon.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def doctor(ctx: click.Context, config: Path | None, unit: str, *, as_json: bool) -> None:
    """Look at configuration, store, disk, clock, ports, certificates, GnuTLS, descriptors and the unit of systemd.

    One line for each check: ok, or what to do. Works with a running and with a stopped daemon, and changes nothing.
    Exit status: 0 when everything is ok, 1 otherwise.
    """
    findings = list(_findings(config, unit))
    is_well = all(finding.ok for finding in findings)
    if as_json:
        click.echo(json.dumps({"ok": is_well, "checks": [asdict(finding) for finding in findings]}))
    else:
        for finding in findings:
            click.echo(f"{finding.check:<14}{'ok: ' if finding.ok else 'TO DO: '}{finding.text}")
    ctx.exit(0 if is_well else 1)


def _findings(config: Path | None, unit: str) -> Iterator[CheckResult]:
    try:
        settings = load_settings(config)
    except SettingsError as error:
        yield CheckResult("configuration", False, str(error))
        return
    yield CheckResult("configuration", True, str(config or "environment"))
    patient = patient_of(settings, unit)
    if patient.silence:
        yield CheckResult("daemon", False, patient.silence)
    else:
        text = "stopped" if patient.standing_by is None else f"stands by, or begins, as process {patient.standing_by}"
        yield CheckResult("daemon", True, text if patient.statistics is None else f"runs as process {patient.pid}")
    yield from examine(patient)
