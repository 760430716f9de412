"""Builds a Debian package of this tree and of what .venv has installed for it: `make deb`.

The package has a virtual environment of its own in /usr/lib/trunkline, on Debian's Python of the same version. Nothing
is downloaded: the dependencies are copied from .venv, which has the versions of constraints.txt. The same tree and the
same .venv give the same package, byte for byte. It needs no root.
"""

import argparse
import compileall
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parent.parent
CONTROL: Final = Path(__file__).parent / "deb"
PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
HOME: Final = "usr/lib/trunkline"
_DOCUMENTS: Final = "usr/share/doc/trunkline"
SITE: Final = f"{HOME}/lib/python{PYTHON}/site-packages"
#: sqlite-utils installs its own plug-ins with it; Trunkline has none. Debian's pip adds packages with `pip --python`.
_LEFT_OUT: Final = frozenset({"pip"})
_SCRIPTS: Final = ("postinst", "prerm", "postrm")
#: The unit of the tree runs as a dynamic user, because nothing creates one there; the package creates its own.
_UNIT_CHANGES: Final = (
    ("/opt/trunkline/bin/trunkline", "/usr/bin/trunkline"),
    ("User=trunkline\nDynamicUser=yes\n", "DynamicUser=yes\n"),
    ("DynamicUser=yes\n", "User=trunkline\nGroup=trunkline\n"),
    ("/var/lib/private/trunkline", "/var/lib/trunkline"),
)
_PROGRAM: Final = f"""#!/{HOME}/bin/python3
import sys

from protocols.cli import main

sys.exit(main())
"""


def installed_closure(name: str, extras: tuple[str, ...]) -> Iterator[Distribution]:
    """The installed dependencies of a distribution, recursively. Raises PackageNotFoundError if one is missing."""
    seen: set[tuple[str, str]] = set()
    waiting = [(name, ("", *extras))]
    found: dict[str, Distribution] = {}
    while waiting:
        wanted, its_extras = waiting.pop()
        key = canonicalize_name(wanted)
        dist = found.setdefault(key, distribution(wanted))
        new = [extra for extra in its_extras if (key, extra) not in seen]
        seen |= {(key, extra) for extra in new}
        for text in dist.requires or () if new else ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in new):
                waiting.append((requirement.name, ("", *requirement.extras)))
    del found[canonicalize_name(name)]
    yield from (found[key] for key in sorted(found.keys() - _LEFT_OUT))


def copy_distribution(dist: Distribution, site: Path) -> None:
    """Copy modules, data and metadata. Programs, and what differs from machine to machine, stay behind."""
    for file in dist.files or ():
        if ".." in file.parts or "__pycache__" in file.parts or file.name in {"direct_url.json", "RECORD", "REQUESTED"}:
            continue
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(str(file.locate()), target)


def stage(root: Path, *, extras: tuple[str, ...] = ()) -> None:
    """Put everything that the package installs below `root`."""
    site = root / SITE
    site.mkdir(parents=True)
    for dist in installed_closure("trunkline", extras):
        copy_distribution(dist, site)
    _unpack_own_wheel(site)
    compileall.compile_dir(
        site,
        quiet=1,
        workers=1,
        stripdir=str(root),
        prependdir="/",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    (root / HOME / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {PYTHON}\n", encoding="utf-8"
    )
    bin_ = root / HOME / "bin"
    bin_.mkdir()
    (bin_ / "python3").symlink_to(f"/usr/bin/python{PYTHON}")
    (bin_ / "trunkline").write_text(_PROGRAM, encoding="utf-8")
    (bin_ / "trunkline").chmod(0o755)
    (root / "usr/bin").mkdir()
    (root / "usr/bin/trunkline").symlink_to(f"../../{HOME}/bin/trunkline")
    _stage_system_files(root)


def _unpack_own_wheel(site: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(  # noqa: S603 - our own words
            [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
            check=True,
            capture_output=True,
        )
        (path,) = Path(folder).iterdir()
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(site)
    (record,) = site.glob("trunkline-*.dist-info/RECORD")
    record.unlink()


def _stage_system_files(root: Path) -> None:
    units = root / "lib/systemd/system"
    units.mkdir(parents=True)
    for unit in sorted((ROOT / "systemd").iterdir()):
        if unit.suffix in {".service", ".timer"}:
            (units / unit.name).write_text(unit_of_package(unit.read_text(encoding="utf-8")), encoding="utf-8")
    for source, target in (
        (CONTROL / "sysusers.conf", "usr/lib/sysusers.d/trunkline.conf"),
        (ROOT / "config/example.toml", "etc/trunkline/trunkline.toml"),
        (ROOT / "LICENSE", f"{_DOCUMENTS}/copyright"),
        (ROOT / "NOTICE", f"{_DOCUMENTS}/NOTICE"),
        (ROOT / "README.md", f"{_DOCUMENTS}/README.md"),
        (ROOT / "CHANGELOG.md", f"{_DOCUMENTS}/CHANGELOG.md"),
        (ROOT / "config/gateway.example.toml", f"{_DOCUMENTS}/examples/gateway.example.toml"),
        (ROOT / "config/connector.example.toml", f"{_DOCUMENTS}/examples/connector.example.toml"),
        *(
            (file, f"{_DOCUMENTS}/examples/{file.name}")
            for kind in ("*.socket", "*.conf")
            for file in sorted((ROOT / "systemd").glob(kind))
        ),
    ):
        if not source.exists():
            continue
        (root / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, root / target)


def unit_of_package(text: str) -> str:
    for old, new in _UNIT_CHANGES:
        text = text.replace(old, new)
    return text


def pack(root: Path, version: str, folder: Path, *, compression: str = "zstd", level: int = 9) -> Path:
    """Make a package of what `stage` has put below `root`, as many times as there are versions."""
    control = root / "DEBIAN"
    shutil.rmtree(control, ignore_errors=True)
    control.mkdir()
    asked = ["dpkg", "--print-architecture"]
    architecture = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603
    bytes_ = sum(path.lstat().st_size for path in root.rglob("*") if path.is_file())
    major, minor = PYTHON.split(".")
    (control / "control").write_text(
        (CONTROL / "control.in")
        .read_text(encoding="utf-8")
        .format(
            version=version,
            architecture=architecture,
            size=-(-bytes_ // 1024),
            python=PYTHON,
            next_python=f"{major}.{int(minor) + 1}",
        ),
        encoding="utf-8",
    )
    (control / "conffiles").write_text("/etc/trunkline/trunkline.toml\n", encoding="utf-8")
    shutil.copyfile(CONTROL / "templates", control / "templates")
    for name in _SCRIPTS:
        shutil.copyfile(CONTROL / name, control / name)
    _set_modes(root)
    target = folder / f"trunkline_{version}_{architecture}.deb"
    folder.mkdir(parents=True, exist_ok=True)
    # One thread: with more, the bytes depend on the number of processors.
    how = ("--root-owner-group", "--threads-max=1", f"-Z{compression}", f"-z{level}")
    subprocess.run(  # noqa: S603 - our own words
        ["dpkg-deb", *how, "--build", root, target],  # noqa: S607 - Debian's program
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "SOURCE_DATE_EPOCH": _epoch()},  # no file is newer in the package
    )
    return target


def _set_modes(root: Path) -> None:
    """Whatever the umask of the builder is."""
    root.chmod(0o755)
    for path in root.rglob("*"):
        if not path.is_symlink():
            is_program = path.parent.name in {"bin", "DEBIAN"} and path.name in {"trunkline", *_SCRIPTS}
            path.chmod(0o755 if path.is_dir() or is_program else 0o644)
    (root / "etc/trunkline/trunkline.toml").chmod(0o640)


def _git(*words: str) -> str:
    run = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603, S607
    return run.stdout.strip()


def _epoch() -> str:
    return os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct") or "315532800"


def version_of_tree() -> str:
    """The version of the project; between releases with the number of commits, so that a later tree is an upgrade."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version, commits = str(project["version"]), _git("rev-list", "--count", "HEAD")
    is_release = f"v{version}" in _git("tag", "--points-at", "HEAD").split()
    return version if is_release or not commits else f"{version}+r{commits}"


def extras_of(wanted: str) -> tuple[str, ...]:
    """The extras to include: learning, streams and the ones of a list; `none` means none at all."""
    return () if wanted == "none" else ("learning", "streams", *filter(None, wanted.split(",")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", default="", help="more optional parts of pyproject.toml, such as tracing, or none")
    parser.add_argument("--version", default=version_of_tree())
    parser.add_argument("--folder", type=Path, default=ROOT / "build")
    options = parser.parse_args()
    os.environ["SOURCE_DATE_EPOCH"] = _epoch()  # of the wheel, too
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        stage(root, extras=extras_of(options.extras))
        print(pack(root, options.version, options.folder))  # noqa: T201 - what `make deb` is for


if __name__ == "__main__":
    main()
