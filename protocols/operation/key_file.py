"""The file with the daemon's key: one line for each key, the newest first. Only the newest one seals.

There is one key, except while `trunkline key rotate` is under way or was interrupted. The file is written to another
name and renamed, so that it is never incomplete.
"""

import os
from pathlib import Path

import msgspec

from broker.secrets import Vault


class KeyFileError(Exception):
    """The key cannot be used. The text is one line for the operator."""


class KeyFile(msgspec.Struct, frozen=True):
    path: Path

    def keys(self, *, is_private: bool = True) -> tuple[bytes, ...]:
        """The keys, the newest first; each is checked.

        Args:
            is_private: refuse a file that others may read.

        Raises:
            KeyFileError: the file cannot be read, others may read it, or it has no key or something else than keys.
        """
        try:
            if is_private and self.path.stat().st_mode & 0o077:
                raise KeyFileError(f"{self.path}: others may read this key: chmod 600 it")
            keys = tuple(self.path.read_bytes().split())
            Vault(*keys)
        except OSError as error:
            raise KeyFileError(f"{self.path}: {error.strerror}") from error
        except (TypeError, ValueError) as error:  # TypeError: there is not even one
            raise KeyFileError(f"{self.path}: not a key: expected 32 bytes in URL-safe Base64") from error
        return keys

    def write(self, *keys: bytes) -> None:
        """Make these the keys, durably. The file keeps its owner. Raises KeyFileError."""
        draft = self.path.with_name(f"{self.path.name}.new")
        try:
            draft.unlink(missing_ok=True)
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123 - its mode
                file.write(b"\n".join(keys) + b"\n")
                self._keep_owner(file.fileno())
                file.flush()
                os.fsync(file.fileno())
            draft.rename(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise KeyFileError(f"{self.path}: {error.strerror}") from error

    def _keep_owner(self, draft: int) -> None:
        """Root replaces the key of a daemon that runs as another user, who must be able to read it."""
        before = self.path if self.path.exists() else self.path.parent
        status = before.stat()
        if os.geteuid() == 0:
            os.fchown(draft, status.st_uid, status.st_gid)
