"""The Manifest of an entry of `device_types`, and the versions that others have approved since the last run."""

from collections.abc import Mapping
from typing import Any, Final

from broker.device_types.documents import DeviceTypeDocument
from broker.device_types.manifest_parser import parse_manifest
from broker.device_types.manifests import is_same_document, put_manifest
from broker.device_types.resources import ResourceModels, check_resources
from broker.errors import Finding, ValidationFailed
from broker.provisioning.reading import EntryLocation, ReadTables
from broker.provisioning.report import ChangedKey
from broker.provisioning.run import ProvisioningRun
from storage.keys import DeviceTypeKey
from storage.records import DeviceTypeRecord, ManifestRecord

_MARK: Final = "manifest"  # the kind of the marks of the versions that come from the file


def check_manifests(reading: ReadTables, document: Mapping[str, Any], models: ResourceModels | None) -> None:
    """Check each Manifest by itself, also of entries that are wrong elsewhere. An entry with a wrong one is refused."""
    for at, entry in reading.of("device_types"):
        if entry.manifest is not None and (found := _findings(at, entry.manifest, models)):
            reading.refuse(at, entry, ValidationFailed(found))
    for at, _ in reading.unusable:
        given = document[at.table][at.index]
        if at.table == "device_types" and isinstance(given, Mapping) and isinstance(given.get("manifest"), Mapping):
            reading.findings.add(*_findings(at, given["manifest"], models))


def _findings(at: EntryLocation, manifest: Mapping[str, Any], models: ResourceModels | None) -> tuple[Finding, ...]:
    try:
        check_resources(parse_manifest(manifest), models)
    except ValidationFailed as error:
        return tuple(Finding(f"{at}.manifest: {finding.field}", finding.messages) for finding in error.findings)
    return ()


def put_file_manifest(
    run: ProvisioningRun,
    at: EntryLocation,
    device_type: DeviceTypeRecord,
    key: DeviceTypeKey,
    document: Mapping[str, Any],
) -> list[ChangedKey]:
    """Make the document the newest version, and approve it, because the operator provisions it.

    A version that others approved since stays, unless the run has `force`. `check_manifests` has checked the document.
    """
    versions = run.tx.device_types.manifests(key)
    latest = max((one for one in versions if one.approved), key=lambda one: one.version, default=None)
    known = None if latest is None else latest.version
    if latest is not None and is_same_document(latest.document, document):
        _mark(run, device_type, latest.version)
        return []
    if latest is not None and not run.force and _is_of_others(run, device_type, latest, versions, document):
        run.notice(
            at,
            device_type.unique_name,
            f"keeps version {latest.version} of its Manifest, which was approved since and is not that of the file:"
            " put it into the file, or use --force",
        )
        return []
    record, is_new = put_manifest(run.tx, key, DeviceTypeDocument.of(document), approve=True, now_ms=run.now_ms)
    _mark(run, device_type, record.version)
    return (
        [ChangedKey("manifest", *(f"version {one}" if one else None for one in (known, record.version)))]
        if is_new
        else []
    )


def _is_of_others(
    run: ProvisioningRun,
    device_type: DeviceTypeRecord,
    latest: ManifestRecord,
    versions: list[ManifestRecord],
    document: Mapping[str, Any],
) -> bool:
    marked = run.tx.provision_marks.object_of(_MARK, device_type.id)
    if marked is not None:
        return latest.version > int(marked)
    # The type is from a time without marks: only a document that has been there before tells that the file is older.
    return any(one.version < latest.version and is_same_document(one.document, document) for one in versions)


def _mark(run: ProvisioningRun, device_type: DeviceTypeRecord, version: int) -> None:
    if run.tx.provision_marks.object_of(_MARK, device_type.id) != str(version):
        run.tx.provision_marks.put(_MARK, device_type.id, str(version))
