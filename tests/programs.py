"""Programs and libraries that are not Python packages. Where one is missing, what needs it is skipped by name."""

import os
import shutil
from ctypes import CDLL
from typing import Never

import pytest


def require_program(name: str) -> str:
    """The path of an installed program. Skips the test that asks when it is missing; with CI=true that is a failure."""
    path = shutil.which(name)
    if path is None:
        _skip(name)
    return path


def require_library(name: str) -> None:
    """As `require_program`."""
    try:
        CDLL(name)
    except OSError:
        _skip(name)


def _skip(name: str) -> Never:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{name} is not installed; .ci/run must install it")
    pytest.skip(f"{name} is not installed")
