"""Names that people give: one rule for those of devices, types, applications, rules, scenes, trials and people.

Joiners (Persian, Hindi, families of emoji) and direction marks (Arabic, Hebrew) are part of names as of other texts.
Only control characters are refused, and names of which nothing is to be seen. Names of devices, types, applications and
organizations have none of the characters of markup, either (reference 6.1).
"""

import unicodedata
from typing import Final

from config.limits import FORBIDDEN_IN_NAMES

#: Control characters, and halves of surrogate pairs, which no text in UTF-8 has.
_CONTROLS: Final = frozenset({"Cc", "Cs"})
#: Blanks, separators of lines and paragraphs, and marks that are not seen themselves.
_UNSEEN: Final = frozenset({"Zs", "Zl", "Zp", "Cf"})


def name_problem(name: str, *, plain: bool = False) -> str | None:
    """Why a text of the right length is no name; None when it is one. `plain`: `< > & ' "` are not taken, either."""
    if plain and not FORBIDDEN_IN_NAMES.isdisjoint(name):
        return f"must not contain any of {' '.join(sorted(FORBIDDEN_IN_NAMES))}"
    categories = set(map(unicodedata.category, name))
    if not _CONTROLS.isdisjoint(categories):
        return "must not contain control characters"
    return "must not be blank" if categories and categories <= _UNSEEN else None


def plain_name_problem(name: str) -> str | None:
    return name_problem(name, plain=True)
