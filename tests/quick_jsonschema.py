"""jsonschema without its format "iri", which no schema here has, and which takes 1.5 s when it is only imported."""

import sys
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Final

_NAME: Final = "rfc3987_syntax"


def put_off_grammar() -> None:
    """Call this before jsonschema is imported: the grammar of RFC 3987 is built when a text is first checked by it."""
    if _NAME not in sys.modules:
        stand_in = sys.modules[_NAME] = ModuleType(_NAME)
        stand_in.is_valid_syntax = _is_valid_syntax  # type: ignore[attr-defined]


def _is_valid_syntax(*arguments: Any) -> bool:
    is_valid: bool = _loaded().is_valid_syntax(*arguments)
    return is_valid


@cache
def _loaded() -> ModuleType:
    del sys.modules[_NAME]
    return import_module(_NAME)
