"""Programs and libraries that are not Python packages. Tests that need a missing one are skipped, and name it."""

import os
import shutil
import subprocess
from functools import cache
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


def require_node_module(name: str) -> str:
    """The value of NODE_PATH with which Node finds a module. Where it finds none, see `skip_without`."""
    node = require_program("node")
    found = subprocess.run([node, "-e", f"require.resolve({name!r})"], capture_output=True, check=False)
    if found.returncode:
        skip_without(name, "is not in NODE_PATH")
    return os.environ.get("NODE_PATH", "")


def require_micropython_module(name: str) -> tuple[str, str]:
    """The path of MicroPython, and the value of MICROPYPATH with which it finds a module, as `require_program`."""
    program = require_program("micropython")
    if subprocess.run([program, "-c", f"import {name}"], capture_output=True, check=False).returncode:
        skip_without(name, "is not in MICROPYPATH")
    return program, os.environ.get("MICROPYPATH", "")


@cache
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
