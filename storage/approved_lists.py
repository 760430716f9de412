"""Approved lists of vendor ids: uploads, entries, certificates. The caller holds the transaction."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from storage.keys import DeviceTypeKey
from storage.records import ApprovedEntryRecord, ApprovedUploadRecord
from storage.sql import Store

_ENTRIES = (
    "SELECT e.vdid, d.id AS device_id, e.uploaded_on FROM approved_list_entry AS e"
    " LEFT JOIN device AS d ON d.device_type = e.device_type AND d.vdid = e.vdid AND d.deleted_on IS NULL"
    " WHERE e.device_type = :device_type"
)


class ApprovedListStore(Store):
    # The switch

    def is_enabled(self, device_type: DeviceTypeKey) -> bool:
        row = self._db.execute("SELECT approved_list FROM device_type WHERE key = :key", {"key": device_type}).one()
        return row is not None and bool(row["approved_list"])

    def set_enabled(self, device_type: DeviceTypeKey, enabled: bool) -> None:
        self._db.execute(
            "UPDATE device_type SET approved_list = :enabled WHERE key = :key",
            {"key": device_type, "enabled": int(enabled)},
        )

    def has_devices(self, device_type: DeviceTypeKey) -> bool:
        row = self._db.execute(
            "SELECT 1 FROM device WHERE device_type = :key AND deleted_on IS NULL LIMIT 1", {"key": device_type}
        ).one()
        return row is not None

    # Entries

    def entry(self, device_type: DeviceTypeKey, vdid: str) -> ApprovedEntryRecord | None:
        row = self._db.execute(_ENTRIES + " AND e.vdid = :vdid", {"device_type": device_type, "vdid": vdid}).one()
        return ApprovedEntryRecord(**dict(row)) if row else None

    def entries(self, device_type: DeviceTypeKey, *, offset: int, limit: int) -> tuple[list[ApprovedEntryRecord], int]:
        """A page of entries in the order of upload, and the number of all entries."""
        rows = self._db.execute(
            _ENTRIES + " ORDER BY e.key LIMIT :limit OFFSET :offset",
            {"device_type": device_type, "limit": limit, "offset": offset},
        )
        counted = self._db.execute(
            "SELECT count(*) AS n FROM approved_list_entry WHERE device_type = :key", {"key": device_type}
        ).one()
        return [ApprovedEntryRecord(**dict(row)) for row in rows], int(counted["n"]) if counted else 0

    def entries_of_organization(self, device_type: DeviceTypeKey, *, most: int) -> int:
        """How many entries all types of its organization have; at most `most` are counted."""
        row = self._db.execute(
            "SELECT count(*) AS n FROM (SELECT 1 FROM approved_list_entry AS e"
            " JOIN device_type AS t ON t.key = e.device_type"
            " WHERE t.organization = (SELECT organization FROM device_type WHERE key = :key) LIMIT :most) AS counted",
            {"key": device_type, "most": most},
        ).one()
        return int(row["n"]) if row else 0

    def add_entries(self, device_type: DeviceTypeKey, vdids: Iterable[str], *, now_ms: int) -> set[str]:
        """Add the ids that are not there yet; returns the added ones."""
        rows = self._db.execute(
            "INSERT INTO approved_list_entry (device_type, vdid, uploaded_on)"  # noqa: S608 - constants
            f" SELECT :device_type, value, :now FROM ({self._db.texts_in('vdids')}) AS given WHERE TRUE"
            " ON CONFLICT (device_type, vdid) DO NOTHING RETURNING vdid",
            {"device_type": device_type, "vdids": self._db.texts(vdids), "now": now_ms},
        )
        return {row["vdid"] for row in rows}

    def remove_entry(self, device_type: DeviceTypeKey, vdid: str) -> None:
        self._db.execute(
            "DELETE FROM approved_list_entry WHERE device_type = :device_type AND vdid = :vdid",
            {"device_type": device_type, "vdid": vdid},
        )

    # Uploads

    def upload(self, device_type: DeviceTypeKey, id_: str) -> ApprovedUploadRecord | None:
        row = self._db.execute(
            "SELECT * FROM approved_list_upload WHERE device_type = :device_type AND id = :id",
            {"device_type": device_type, "id": id_},
        ).one()
        return _upload(row) if row else None

    def next_uploads(self) -> list[tuple[int, int]]:
        """The keys of each organization with uploads that are not done, and of the oldest of them."""
        rows = self._db.execute(
            "SELECT coalesce(t.organization, 0) AS of, min(u.key) AS oldest FROM approved_list_upload AS u"
            " JOIN device_type AS t ON t.key = u.device_type WHERE u.status = 'Processing'"
            " GROUP BY coalesce(t.organization, 0) ORDER BY oldest"
        )
        return [(row["of"], row["oldest"]) for row in rows]

    def upload_by_key(self, key: int) -> ApprovedUploadRecord | None:
        row = self._db.execute("SELECT * FROM approved_list_upload WHERE key = :key", {"key": key}).one()
        return _upload(row) if row else None

    def waiting_uploads(self, device_type: DeviceTypeKey) -> tuple[int, int]:
        """How many uploads of a device type, and of all types of its organization, are not done."""
        row = self._db.execute(
            "SELECT count(CASE WHEN u.device_type = :key THEN 1 END) AS of_type, count(*) AS of_organization"
            " FROM approved_list_upload AS u JOIN device_type AS t ON t.key = u.device_type"
            " WHERE u.status = 'Processing'"
            " AND t.organization = (SELECT organization FROM device_type WHERE key = :key)",
            {"key": device_type},
        ).one()
        return (int(row["of_type"]), int(row["of_organization"])) if row else (0, 0)

    def add_upload(self, device_type: DeviceTypeKey, id_: str, content: bytes, *, now_ms: int) -> None:
        self._db.execute(
            "INSERT INTO approved_list_upload"
            " (id, device_type, status, content, total, succeeded, failed, created_on)"
            " VALUES (:id, :device_type, 'Processing', :content, 0, 0, 0, :now)",
            {"id": id_, "device_type": device_type, "content": content, "now": now_ms},
        )

    def save_upload(self, upload: ApprovedUploadRecord) -> None:
        """Save the progress of an upload. The content of an upload that is done is erased."""
        self._db.execute(
            "UPDATE approved_list_upload SET status = :status, total = :total, succeeded = :succeeded,"
            " failed = :failed, content = CASE WHEN :status = 'Processing' THEN content END WHERE key = :key",
            {
                "key": upload.key,
                "status": upload.status,
                "total": upload.total,
                "succeeded": upload.succeeded,
                "failed": upload.failed,
            },
        )

    def forget_uploads(self, device_type: DeviceTypeKey, *, keep: int, keep_of_organization: int) -> None:
        """Remove the oldest finished uploads, but keep `keep` of the type and `keep_of_organization` of its
        organization."""
        of_organization = (
            "(SELECT key FROM device_type WHERE organization = (SELECT organization FROM device_type WHERE key = :key))"
        )
        for types, kept in (("(:key)", keep), (of_organization, keep_of_organization)):
            self._db.execute(
                f"DELETE FROM approved_list_upload WHERE device_type IN {types} AND status <> 'Processing'"  # noqa: S608 - constants
                " AND key NOT IN (SELECT key FROM approved_list_upload"
                f" WHERE device_type IN {types} ORDER BY key DESC LIMIT :keep)",
                {"key": device_type, "keep": kept},
            )

    def add_rejections(self, upload: int, rejected: Iterable[tuple[int, str]]) -> None:
        """Note the rows that were rejected: their numbers, from 1, each with the reason."""
        rows = [(upload, row, message) for row, message in rejected]
        if rows:
            self._db.put_many("approved_list_rejection", ("upload", "row", "message"), ("upload", "row"), rows)

    def rejections(self, upload: int, *, offset: int, limit: int) -> list[tuple[int, str]]:
        rows = self._db.execute(
            "SELECT row, message FROM approved_list_rejection WHERE upload = :upload ORDER BY row"
            " LIMIT :limit OFFSET :offset",
            {"upload": upload, "limit": limit, "offset": offset},
        )
        return [(row["row"], row["message"]) for row in rows]

    # Certificates

    def certificates(self, device_type: DeviceTypeKey) -> Sequence[tuple[str, bytes]]:
        """The ids of the certificates and their DER, in the order of upload."""
        rows = self._db.execute(
            "SELECT id, certificate FROM approved_list_certificate WHERE device_type = :key ORDER BY key",
            {"key": device_type},
        )
        return [(row["id"], row["certificate"]) for row in rows]

    def add_certificate(self, device_type: DeviceTypeKey, id_: str, certificate: bytes) -> bool:
        """Whether it was not there yet."""
        row = self._db.execute(
            "INSERT INTO approved_list_certificate (id, device_type, certificate) VALUES (:id, :key, :certificate)"
            " ON CONFLICT (device_type, certificate) DO NOTHING RETURNING key",
            {"id": id_, "key": device_type, "certificate": certificate},
        ).one()
        return row is not None

    def remove_certificate(self, device_type: DeviceTypeKey, id_: str) -> bytes | None:
        """Remove a certificate and return its DER."""
        row = self._db.execute(
            "DELETE FROM approved_list_certificate WHERE device_type = :key AND id = :id RETURNING certificate",
            {"key": device_type, "id": id_},
        ).one()
        return row["certificate"] if row else None


def _upload(row: Mapping[str, Any]) -> ApprovedUploadRecord:
    return ApprovedUploadRecord(
        key=row["key"],
        id=row["id"],
        device_type=row["device_type"],
        status=row["status"],
        content=row["content"],
        total=row["total"],
        succeeded=row["succeeded"],
        failed=row["failed"],
    )
