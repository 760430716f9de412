"""The texts of findings, as far as tests compare them."""

from typing import Any, Final

_BEGINNING: Final = "Invalid value: "


class _Invalid:
    """Equal to each text `Invalid value: …` that says what is wrong; `Invalid value` alone does not."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and other.startswith(_BEGINNING) and len(other) > len(_BEGINNING) + 5

    def __hash__(self) -> int:
        return hash(_BEGINNING)

    def __repr__(self) -> str:
        return f"'{_BEGINNING}…'"


INVALID: Final[Any] = _Invalid()
