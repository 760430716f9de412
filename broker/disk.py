"""The reserve on the disk: files that users fill leave it to the store."""

import shutil
from pathlib import Path
from typing import Final

_MIB: Final = 1024 * 1024
RESERVE_LEAST: Final = 64 * _MIB
RESERVE_MOST: Final = 1024 * _MIB


def room_in(folder: Path) -> int:
    """How many bytes may still be written to the disk of a folder, without the reserve; below 0 there are too few.

    The reserve is a twentieth of the disk, at least 64 MiB and at most 1 GiB. Raises OSError.
    """
    while not folder.exists():
        folder = folder.parent
    disk = shutil.disk_usage(folder)
    return disk.free - min(max(disk.total // 20, RESERVE_LEAST), RESERVE_MOST)
