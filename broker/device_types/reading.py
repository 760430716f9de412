"""Reads uploaded documents member by member, and collects all problems before the document is refused."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeGuard

from broker.errors import BOOLEAN_ONLY, TEXT_ONLY, Finding, ValidationFailed, invalid, too_long

_MAX_FINDINGS: Final = 1_000  # bounds the answer to a document that is wrong throughout

JsonObject = Mapping[str, object]


class DocumentReader:
    """Collects findings while a document is read. `null` counts as absent everywhere."""

    def __init__(self) -> None:
        self._findings: list[Finding] = []

    def refuse(self, path: str, message: str) -> None:
        if len(self._findings) < _MAX_FINDINGS:
            self._findings.append(Finding(path, (message,)))

    @property
    def has_findings(self) -> bool:
        return bool(self._findings)

    def check(self) -> None:
        """Raises ValidationFailed with everything found so far."""
        if self._findings:
            raise ValidationFailed(tuple(self._findings))

    def text(
        self, source: JsonObject, path: str, member: str, *, default: str | None = None, maximum: int | None = None
    ) -> str | None:
        """The text of a member; `default` when it is absent; None when it is refused, with a finding."""
        value = source.get(member)
        if value is None:
            return default
        if not self.is_text(value, path):
            return None
        if maximum is not None and len(value) > maximum:
            self.refuse(path, too_long(maximum))
            return None
        return value

    def flag(self, source: JsonObject, path: str, member: str) -> bool:
        value = source.get(member)
        if value is not None and not isinstance(value, bool):
            self.refuse(path, BOOLEAN_ONLY)
        return value is True

    def array(self, value: object, path: str) -> Sequence[object]:
        if isinstance(value, list | tuple):
            return value
        if value is not None:
            self.refuse(path, invalid("must be a list"))
        return ()

    def objects(self, entries: Sequence[object], path: str) -> Iterator[tuple[str, JsonObject]]:
        for index, entry in enumerate(entries):
            if isinstance(entry, Mapping):
                yield f"{path}.{index}", entry
            else:
                self.refuse(f"{path}.{index}", invalid("must be an object"))

    def is_text(self, value: object, path: str) -> TypeGuard[str]:
        if not isinstance(value, str):
            self.refuse(path, TEXT_ONLY)
            return False
        return True
