"""English sentences that remember their pattern, so that a page can say them in the person's language."""

from typing import Any


class Words(str):
    """A sentence: `pattern` with the `names` in its placeholders, as of `str.format`.

    It is that text in English for everybody who does not look further. protocols/http/texts.py translates it.
    """

    __slots__ = ("names", "pattern")
    pattern: str
    names: dict[str, Any]

    def __new__(cls, pattern: str, **names: Any) -> "Words":
        made = super().__new__(cls, pattern.format(**names))
        made.pattern, made.names = pattern, names
        return made
