"""The copies of the store that upgrades keep beside it (storage/engines/sqlite_upgrade.py) have an end."""

import time
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from storage.engines.sqlite_compact import unfinished_copy
from storage.engines.sqlite_upgrade import copies_of

_KEPT_SECONDS: Final = 86_400

_log = structlog.get_logger(__name__)


async def forget_copies(store: Path) -> None:
    """Delete the file of a compaction that did not end; and each copy a day after its upgrade: it takes as much room
    as the store, and has all data of that time. A file that cannot be deleted is logged, and stays."""
    if (unfinished := unfinished_copy(store)).exists():
        await _delete(unfinished)
    for copy in copies_of(store):
        try:
            age = time.time() - copy.stat().st_mtime
        except FileNotFoundError:  # the operator has deleted it
            continue
        await trio.sleep(max(0.0, _KEPT_SECONDS - age))
        if await _delete(copy):
            _log.info("copy_of_upgrade_deleted", copy=str(copy))


async def _delete(file: Path) -> bool:
    try:
        await trio.to_thread.run_sync(partial(file.unlink, missing_ok=True))
    except OSError as error:
        _log.warning("file_not_deleted", file=str(file), reason=error.strerror)
        return False
    return True
