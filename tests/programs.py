"""Programs that are not Python packages. Where one is missing, the tests that need it are skipped by name."""

import os
import shutil

import pytest


def require_program(name: str) -> str:
    """The path of an installed program. Skips the test that asks when it is missing; with CI=true that is a failure."""
    path = shutil.which(name)
    if path is not None:
        return path
    if os.environ.get("CI") == "true":
        pytest.fail(f"{name} is not installed; .ci/run must install it")
    pytest.skip(f"{name} is not installed")
