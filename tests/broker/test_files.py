"""Files in the store, and those of earlier versions, which were beside it."""

from functools import partial

import pytest
import trio

from broker.files import Draft, StoredFile
from broker.ids import new_id
from broker.services import Services
from config.settings import Settings
from storage.files import CHUNK_BYTES, FileKey
from storage.firmware import FirmwareImageRecord
from storage.keys import DeviceTypeKey, Milliseconds
from storage.records import ExportRecord
from storage.sql import StoreError, StoreFullError
from storage.transaction import Transaction
from tests.builders import ServicesOpener
from tests.fakes import FakeClock
from tests.rows import each_row
from tests.stored_files import stored_files

DAY_MS = 86_400_000
CONTENT = bytes(range(256)) * 2_600  # between two and three chunks
IMAGE, EXPORT, ENDED, ARCHIVE = (f"{letter * 32}" for letter in "abcd")


async def put(services: Services, name: str, content: bytes) -> StoredFile:
    await services.core.files.clear(name)
    draft = services.core.files.draft()
    for start in range(0, len(content), 100_000):
        await draft.add(content[start : start + 100_000])
    await draft.flush()
    await services.core.database.write(lambda tx: draft.keep(tx, name))
    found = await services.core.files.find(name)
    assert found is not None
    return found


@each_row(
    "wanted",
    [
        range(0),
        range(1),
        range(len(CONTENT)),
        range(CHUNK_BYTES - 1, CHUNK_BYTES + 1),
        range(CHUNK_BYTES, 2 * CHUNK_BYTES),
        range(CHUNK_BYTES + 7, len(CONTENT) - 3),
        range(len(CONTENT) - 1, len(CONTENT)),
        range(len(CONTENT), len(CONTENT)),
    ],
)
async def test_any_part_of_a_file_is_read(services: Services, wanted: range) -> None:
    file = await put(services, "images/a", CONTENT)
    assert file.size == len(CONTENT)
    assert await file.read(wanted.start, len(wanted)) == CONTENT[wanted.start : wanted.stop]
    pieces = [piece async for piece in file.pieces(wanted)]
    assert b"".join(pieces) == CONTENT[wanted.start : wanted.stop]
    assert max(map(len, pieces), default=0) <= CHUNK_BYTES


async def test_no_reader_is_held_while_a_file_is_read_slowly(services: Services) -> None:
    """A transaction of its own for each piece: so slow peers hold up neither readers nor the write-ahead log."""
    file = await put(services, "images/a", CONTENT)
    slow = [file.pieces(range(len(CONTENT))) for _ in range(20)]  # more than there are readers
    for pieces in slow:
        assert len(await anext(pieces)) == CHUNK_BYTES
    with trio.fail_after(10):
        assert await services.core.database.read(lambda tx: tx.files.find("images/a")) is not None
    for pieces in slow:
        await pieces.aclose()


async def test_a_file_is_deleted_some_chunks_at_a_time(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    file = await put(services, "images/a", bytes(9 * CHUNK_BYTES + 1))
    await services.core.files.clear("images/a")
    assert await services.core.files.find("images/a") is None
    commits = services.core.database.statistics().commits
    await services.core.files.sweep()
    assert services.core.database.statistics().commits - commits == 3  # ten chunks, four in a commit
    assert await file.read(0, 1) == b""
    assert await stored_files(services) == {}


async def test_what_did_not_become_whole_is_deleted(
    opener: ServicesOpener, fake_clock: FakeClock, settings: Settings
) -> None:
    async with opener() as services:
        dropped, left = services.core.files.draft(), services.core.files.draft()
        for draft in (dropped, left):
            await draft.add(CONTENT)
        await services.core.files.sweep()
        assert len(await stored_files(services)) == 2
        await dropped.drop()
        await services.core.files.sweep()
        assert len(await stored_files(services)) == 1
        fake_clock.advance(DAY_MS + 1)
        await services.core.files.sweep()
        with pytest.raises(StoreError):
            await left.flush()
        killed = services.core.files.draft()
        await killed.add(CONTENT)
        assert len(await stored_files(services)) == 1
    async with opener() as services:
        await services.core.files.sweep()
        assert await stored_files(services) == {}


async def test_a_file_that_was_kept_is_not_dropped(services: Services) -> None:
    draft = services.core.files.draft()
    await draft.add(b"one")
    with pytest.raises(StoreError, match="not whole"):
        await services.core.database.write(lambda tx: draft.keep(tx, "images/a"))
    await draft.flush()
    await services.core.database.write(lambda tx: draft.keep(tx, "images/a"))
    await draft.drop()
    await services.core.files.sweep()
    assert await stored_files(services) == {"images/a": b"one"}


# Files of earlier versions


def _known(tx: Transaction) -> None:
    tx.firmware.put(FirmwareImageRecord(IMAGE, DeviceTypeKey(1), "1", "Application", len(CONTENT), "", Milliseconds(0)))
    for id_, status in ((EXPORT, "Success"), (ENDED, "Expired")):
        export = ExportRecord(id_, None, None, None, "{}", "{}", status, 1, 0, expires_on=2**60, file_size=7)  # type: ignore[arg-type]
        tx.exports.put(export)


async def older(opener: ServicesOpener, settings: Settings) -> set[str]:
    """A state directory with files as an earlier version left them; returns the names of those that are needed."""
    async with opener() as services:
        await services.core.database.write(_known)
    for folder, names in {
        "images": (IMAGE, f"{new_id()}.part", new_id()),
        "exports": (f"{EXPORT}.tgz", f"{ENDED}.tgz"),
        "archives": (f"{ARCHIVE}.tgz", "of-somebody-else"),
    }.items():
        (settings.state_dir / folder).mkdir()
        for name in names:
            content = CONTENT if name == IMAGE else b"archive"
            (settings.state_dir / folder / name).write_bytes(content)
    return {f"images/{IMAGE}", f"exports/{EXPORT}"}


async def test_files_beside_the_store_are_taken_in_at_the_first_start(
    opener: ServicesOpener, settings: Settings
) -> None:
    needed = await older(opener, settings)
    async with opener() as services:
        found = await stored_files(services)
        assert found.keys() == needed
        assert found[f"images/{IMAGE}"] == CONTENT
    left = {
        path.name for folder in ("images", "exports", "archives") for path in settings.state_dir.glob(f"{folder}/*")
    }
    assert left == {"of-somebody-else"}
    assert not (settings.state_dir / "images").exists()


async def test_they_stay_beside_it_while_the_upgrade_can_be_undone(opener: ServicesOpener, settings: Settings) -> None:
    """`trunkline store undo-upgrade` puts the earlier version's store in place again."""
    needed = await older(opener, settings)
    copy = settings.state_dir / "store.sqlite.before-0082"
    copy.write_bytes(b"")
    for _ in range(2):
        async with opener() as services:
            assert (await stored_files(services)).keys() == needed
    assert (settings.state_dir / "images" / IMAGE).read_bytes() == CONTENT
    async with opener() as services:
        copy.unlink()
        await services.core.files.sweep()
        assert not (settings.state_dir / "images").exists()


@pytest.mark.parametrize("after", range(6))
async def test_taking_in_goes_on_where_it_was_stopped(
    opener: ServicesOpener, settings: Settings, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Stopped before each write, and between the last one and the removal of the file; nothing is lost or doubled."""
    needed = await older(opener, settings)
    writes, put_before, keep_before = iter(range(100)), Draft._put, Draft.keep

    def stop() -> None:
        if next(writes) == after:
            raise StoreFullError("the disk is full")

    async def stopping(draft: Draft, content: bytes) -> None:
        stop()
        await put_before(draft, content)

    def not_keeping(draft: Draft, tx: Transaction, name: str) -> None:
        stop()
        keep_before(draft, tx, name)

    monkeypatch.setattr(Draft, "_put", stopping)
    monkeypatch.setattr(Draft, "keep", not_keeping)
    async with opener() as services:
        assert services.core.life.statistics()  # it serves all the same
    monkeypatch.undo()
    async with opener() as services:
        await services.core.files.sweep()
        found = await stored_files(services)
        assert found.keys() == needed
        assert (found[f"images/{IMAGE}"], found[f"exports/{EXPORT}"]) == (CONTENT, b"archive")


async def test_a_file_that_is_in_the_store_already_is_removed_beside_it(
    opener: ServicesOpener, settings: Settings
) -> None:
    """The daemon was killed between the two."""
    async with opener() as services:
        await services.core.database.write(_known)
        await put(services, f"images/{IMAGE}", CONTENT)
    (settings.state_dir / "images").mkdir()
    (settings.state_dir / "images" / IMAGE).write_bytes(b"older")
    async with opener() as services:
        assert await stored_files(services) == {f"images/{IMAGE}": CONTENT}
    assert not (settings.state_dir / "images").exists()


async def test_a_deleted_file_has_no_chunk_of_another(services: Services) -> None:
    first, second = await put(services, "images/a", b"one"), await put(services, "images/b", b"two")
    await services.core.files.clear("images/a")
    await services.core.files.sweep()
    assert await services.core.database.read(partial(_read, first.key)) == b""
    assert await services.core.database.read(partial(_read, second.key)) == b"two"


def _read(key: FileKey, tx: Transaction) -> bytes:
    return tx.files.read(key, 0, 9)
