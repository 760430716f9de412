"""The languages of the pages, as their tags (RFC 5646)."""

from typing import Final

ENGLISH: Final = "en"
#: By tag: the language's name for itself.
LANGUAGES: Final = {ENGLISH: "English", "de": "Deutsch", "fr": "Français"}
