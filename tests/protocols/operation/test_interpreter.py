"""The daemon's settings of the interpreter and the C library."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


#: Eight threads that live at the same time hash one password each, one after the other; prints how many KiB stay.
_PROGRAM = """
import threading
from pathlib import Path
from broker.secrets import Passwords
from protocols.operation.interpreter import give_back_large_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4

give_back_large_memory()
Passwords().hash("warm")
before, together, turn = resident(), threading.Barrier(8), threading.Lock()

def hash_one():
    together.wait()
    with turn:
        Passwords().hash("password")
    together.wait()

threads = [threading.Thread(target=hash_one) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_for_passwords_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True, timeout=60)
    assert int(done.stdout) < 40_000
