"""Programs and libraries that are not Python packages. Tests that need a missing one are skipped, and name it."""

import os
import shutil
from typing import Never

import pytest

from protocols.coap.dtls.errors import DtlsUnavailable
from protocols.coap.dtls.self_test import self_test


def require_program(name: str) -> str:
    """The path of an installed program. Where the program is missing, see `skip_without`."""
    path = shutil.which(name)
    if path is None:
        skip_without(name)
    return path


def require_dtls() -> None:
    """As `require_program`, for a GnuTLS that passes the daemon's self-test."""
    try:
        self_test()
    except DtlsUnavailable as error:
        skip_without("GnuTLS", str(error))


def skip_without(name: str, reason: str = "is not installed") -> Never:
    """Skip the test. With CI=true the test fails instead: there everything is installed."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{name}: {reason}; .ci/run must install it")
    pytest.skip(f"{name}: {reason}")
