"""A root directory that shows this machine's own files and keeps every change to itself, with a network of its own.

It is an overlay in namespaces of its own, which end with the test: packages can be installed in it as on a machine of
their own. There is no systemd in it.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.programs import require_program

_BUILD = """set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
mount -t tmpfs tmpfs "$1/root/run"
mount -t tmpfs tmpfs "$1/root/tmp"
ip link set lo up
echo ready
exec cat
"""


@dataclass(frozen=True, slots=True)
class OtherRoot:
    path: Path
    pid: int

    def command(self, *words: str | Path) -> list[str | Path]:
        namespaces = ["--target", str(self.pid), "--mount", "--net", "--pid"]
        clean = ["env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"]
        return ["nsenter", *namespaces, "chroot", self.path, *clean, "DEBIAN_FRONTEND=noninteractive", *words]

    def run(self, *words: str | Path, status: int = 0, text: str = "") -> str:
        """Run a command that must end with `status`; return its output, stderr included."""
        done = subprocess.run(
            self.command(*words),
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    def leave_room(self, kib: int | None) -> None:
        """How much more may be written to the disk; None: as at the beginning."""
        there = ["nsenter", "--target", str(self.pid), "--mount"]
        disk = str(self.path.parent)
        used = subprocess.run([*there, "df", "-k", "--output=used", disk], capture_output=True, text=True, check=True)
        size = "50%" if kib is None else f"{int(used.stdout.split()[-1]) + kib}k"
        subprocess.run([*there, "mount", "-o", f"remount,size={size}", disk], check=True, timeout=60)

    def write(self, path: str, text: str | bytes) -> None:
        content = text.encode() if isinstance(text, str) else text
        subprocess.run(self.command("tee", path), input=content, stdout=subprocess.DEVNULL, check=True, timeout=60)


@contextmanager
def other_root(folder: Path) -> Iterator[OtherRoot]:
    """Skips the test where this machine does not let it make one."""
    for program in ("unshare", "nsenter", "ip"):
        require_program(program)
    if os.geteuid() != 0:
        pytest.skip("only root may make another root directory")
    words: list[str | Path] = [
        "unshare",
        "--mount",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "sh",
        "-c",
        _BUILD,
        "-",
    ]
    holder = subprocess.Popen(
        [*words, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stderr is not None
    with holder:
        try:
            if holder.stdout.readline() != "ready\n":
                pytest.skip(f"this machine makes no other root directory: {holder.stderr.read().strip()}")
            (child,) = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text(encoding="ascii").split()
            yield OtherRoot(folder / "root", int(child))
        finally:
            holder.kill()  # and with it everything that runs in there


def debian_python(version: str) -> str:
    """Debian's own Python of this version, on which packages run."""
    path = Path(f"/usr/bin/python{version}")
    if not path.exists():
        pytest.skip(f"{path} is not here: the package is for Debian's Python of the version of .venv")
    return str(path)
