"""Programs and libraries that are not Python packages. Where one is missing, what needs it is skipped by name."""

import os
import shutil
from typing import Never

import pytest

from protocols.coap.dtls.errors import DtlsUnavailable
from protocols.coap.dtls.self_test import self_test


def require_program(name: str) -> str:
    """The path of an installed program. Skips the test that asks when it is missing; with CI=true that is a failure."""
    path = shutil.which(name)
    if path is None:
        _skip(name)
    return path


def require_dtls() -> None:
    """As `require_program`, for a GnuTLS that passes the daemon's self-test."""
    try:
        self_test()
    except DtlsUnavailable as error:
        _skip("GnuTLS", str(error))


def _skip(name: str, reason: str = "is not installed") -> Never:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{name}: {reason}; .ci/run must install it")
    pytest.skip(f"{name}: {reason}")
