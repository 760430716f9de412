"""The Debian package: built as any user, installed, upgraded, removed and purged in a root directory of its own."""

import compileall
import importlib.util
import re
import shutil
import struct
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.build_deb import HOME, PYTHON, pack, stage, unit_of_package
from tests.deb_chroot import OtherRoot, debian_python, other_root
from tests.programs import require_program
from tests.properties import chance, in_ci

ROOT = Path(__file__).parent.parent.parent
DEVICE, DEVICE_TOKEN, USER_TOKEN = "d1" * 16, "d2" * 16, "33" * 16
_OWN: Final = ("broker", "config", "protocols", "storage")
_compile_dir: Final = compileall.compile_dir
_SITE: Final = Path(sysconfig.get_path("purelib"))
_UNCHECKED: Final = struct.pack("<I", 1)  # bytecode that is not compared with its file
CONFIG = "/etc/trunkline/trunkline.toml"
URL = "http://127.0.0.1:8080/v1.1"
GATEWAY = f"""
[[organizations]]
name = "Acme"
[[users]]
email = "ada@example.org"
organization = "Acme"
password = "correct horse battery staple"
[[device_types]]
unique_name = "acme.lamp"
organization = "Acme"
manifest = {{ fields = [{{ name = "on", valueClass = "Boolean" }}] }}
[[devices]]
id = "{DEVICE}"
owner = "ada@example.org"
type = "acme.lamp"
name = "Lamp"
token = "{DEVICE_TOKEN}"
[[applications]]
name = "Board"
organization = "Acme"
redirect_uri = "http://localhost:3000/signed-in"
methods = ["authorization_code"]
[[tokens]]
value = "{USER_TOKEN}"
application = "Board"
user = "ada@example.org"
"""


@dataclass(frozen=True, slots=True)
class Packages:
    """Two versions of one tree, and the files in them that name the folder in which they were built."""

    first: Path
    second: Path
    of_here: list[Path]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    require_program("dpkg-deb")
    debian_python(PYTHON)
    folder = tmp_path_factory.mktemp("deb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compileall, "compile_dir", _compile_own)
        stage(folder / "root")
    first, second = (pack(folder / "root", f"0.1.0+r{n}", folder, compression="none", level=0) for n in (1, 2))
    paths = (folder / "root" / HOME).rglob("*")
    of_here = [path for path in paths if path.is_file() and bytes(folder) in path.read_bytes()]
    shutil.rmtree(folder / "root")
    return Packages(first, second, of_here)


def _compile_own(site: Path, **how: Any) -> None:
    """As compileall does it, for our own packages. Modules of others have the bytecode that they have in .venv, if any:
    to compile all of them takes six seconds, and most are never imported."""
    for package in _OWN:
        assert _compile_dir(site / package, **how)
    for path in _SITE.rglob("*.py"):
        copy, made = site / path.relative_to(_SITE), Path(importlib.util.cache_from_source(path))
        if copy.exists() and made.exists() and _is_of(made, path):
            target = Path(importlib.util.cache_from_source(copy))
            target.parent.mkdir(exist_ok=True)
            content = made.read_bytes()
            digest = importlib.util.source_hash(copy.read_bytes())
            target.write_bytes(content[:4] + _UNCHECKED + digest + content[16:])


def _is_of(bytecode: Path, source: Path) -> bool:
    """Whether it was made from this file (PEP 552)."""
    status = source.stat()
    return bytecode.read_bytes()[4:16] == struct.pack("<III", 0, int(status.st_mtime), status.st_size)


@contextmanager
def serving(root: OtherRoot) -> Iterator[None]:
    """Run the unit's command as the unit's user, with the folder that systemd makes for StateDirectory."""
    root.run("install", "-d", "-m", "0700", "-o", "trunkline", "-g", "trunkline", "/var/lib/trunkline")
    unit = root.run("cat", "/lib/systemd/system/trunkline.service")
    user, start = (re.search(rf"(?m)^{key}=(.*)$", unit) for key in ("User", "ExecStart"))
    assert user is not None
    assert start is not None
    who = f"--reuid={user[1]} --regid={user[1]} --init-groups"
    command = root.command("setpriv", *who.split(), *start[1].split())
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        try:
            assert daemon.stdout is not None
            assert daemon.stdout.readline().startswith("trunkline ready http=127.0.0.1:8080 mqtt=127.0.0.1:1883")
            yield
        finally:
            root.run("pkill", "--full", "--signal", "TERM", "^/usr/lib/trunkline/bin/python3 ")  # in there only
            assert daemon.wait(timeout=60) == 0


@in_ci
@pytest.mark.sqlite("the package as it is built by default has no driver of PostgreSQL")
@pytest.mark.timeout(600)  # with the building
def test_a_package_is_installed_used_upgraded_removed_and_purged(packages: Packages, tmp_path: Path) -> None:
    """The upgrade ends on a full disk, then by a kill at any moment; it is repeated without a network. Another one ends
    between unpacking and configuring: the daemon starts all the same."""
    with other_root(tmp_path) as root:
        for name, path in (("first.deb", packages.first), ("second.deb", packages.second)):
            root.write(f"/root/{name}", path.read_bytes())
        began = time.monotonic()
        root.run("dpkg", "--install", "/root/first.deb")
        takes = time.monotonic() - began
        assert root.run("stat", "-c", "%U %G %a", CONFIG) == "root trunkline 640\n"
        assert root.run("getent", "passwd", "trunkline").endswith(":/var/lib/trunkline:/usr/sbin/nologin\n")
        assert "trunkline.service" in root.run("ls", "/etc/systemd/system/multi-user.target.wants")
        assert "trunkline-backup.timer" in root.run("ls", "/etc/systemd/system/timers.target.wants")
        root.write("/root/gateway.toml", GATEWAY)

        with serving(root):
            assert root.run("stat", "-c", "%U", "/var/lib/trunkline/store.sqlite") == "trunkline\n"
            root.run("trunkline", "provision", "/root/gateway.toml", "--config", CONFIG)
            body = f'{{"sdid":"{DEVICE}","data":{{"on":true}}}}'
            answer = root.run(
                "curl", "-sf", f"{URL}/messages", "-H", f"Authorization: Bearer {DEVICE_TOKEN}", "-d", body
            )
            assert '"mid"' in answer
        root.run("sh", "-c", "umask 077; install -d -o trunkline /var/lib/trunkline-backups")

        root.leave_room(4096)
        said = root.run("dpkg", "--install", "/root/second.deb", status=1)
        assert "No space left on device" in said
        assert "starts" in root.run("trunkline", "serve", "--dry-start", "--config", CONFIG)
        root.leave_room(None)
        after = takes * chance().uniform(0.05, 1.0)
        killed = f"timeout --foreground --signal KILL {after:.2f} dpkg --install /root/second.deb || true"
        root.run("sh", "-c", killed)
        root.run("dpkg", "--install", "/root/second.deb")
        assert root.run("dpkg-query", "--show", "--showformat", "${db:Status-Abbrev}", "trunkline") == "ii ", killed
        assert root.run("dpkg", "--verify", "trunkline") == "", killed  # each file is that of the package
        assert root.run("find", f"/{HOME}", "/etc/trunkline", "-name", "*.dpkg-*") == "", killed

        root.run("sh", "-c", f"echo '# mine' >> {CONFIG}")
        root.run("dpkg", "--unpack", "/root/first.deb")  # over the second one; and the power goes
        with serving(root):
            root.run("dpkg", "--configure", "--pending")
            assert root.run("tail", "-n1", CONFIG) == "# mine\n"
            assert root.run("stat", "-c", "%U %G %a", CONFIG) == "root trunkline 640\n"
            found = root.run(
                "curl", "-sf", f"{URL}/messages/last?sdids={DEVICE}", "-H", f"Authorization: Bearer {USER_TOKEN}"
            )
            assert '"data":{"on":true}' in found
            root.run("trunkline", "backup", "--config", CONFIG)

        root.run("dpkg", "--remove", "trunkline")
        root.run("test", "-e", "/usr/bin/trunkline", status=1)
        root.run("test", "-e", f"/{HOME}", status=1)
        root.run("test", "-e", CONFIG)
        root.run("test", "-e", "/var/lib/trunkline/store.sqlite")

        asked = root.run("/var/lib/dpkg/info/trunkline.postrm", "purge")  # nobody is there to answer
        assert "stay in /var/lib/trunkline" in asked
        root.run("test", "-e", "/var/lib/trunkline/store.sqlite")
        root.run("debconf-set-selections", text="trunkline trunkline/remove_data boolean true\n")
        root.run("dpkg", "--purge", "trunkline")
        root.run("sh", "-c", "ls -d /var/lib/trunkline* /etc/trunkline", status=2)


@in_ci
def test_a_package_depends_on_the_tree_alone(packages: Packages) -> None:
    """Folder, user and umask of the builder leave no trace; dpkg-deb takes the times from the last commit."""
    words: list[str | Path] = ["dpkg-deb", "--contents", packages.first]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {line.split()[1] for line in listed} == {"root/root"}
    assert {line.split()[0] for line in listed} == {
        "drwxr-xr-x",
        "-rw-r--r--",
        "-rwxr-xr-x",
        "lrwxrwxrwx",
        "-rw-r-----",
    }
    assert packages.of_here == []


def test_the_units_of_the_package_run_as_its_own_user() -> None:
    for name in ("trunkline.service", "trunkline-backup.service"):
        unit = unit_of_package((ROOT / "systemd" / name).read_text(encoding="utf-8"))
        assert re.findall(r"(?m)^(User|Group|DynamicUser)=(.*)$", unit) == [
            ("User", "trunkline"),
            ("Group", "trunkline"),
        ]
        assert "/opt/" not in unit
        assert "/var/lib/private" not in unit
