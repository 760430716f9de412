"""install.sh below another folder, with a stand-in for pip, which leaves the machine; and what the image is made of."""

import os
import random
import re
import signal
import subprocess
import time
from configparser import ConfigParser
from pathlib import Path

import pytest

from config.loading import load_settings
from deploy.build_deb import extras_of
from tests.daemon import TRUNKLINE
from tests.programs import require_program
from tests.properties import in_ci

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent
#: Makes an environment whose Python is pip, and whose program says which one it is. Each fails when it is told to.
_PYTHON = r"""#!/bin/sh
case "$*" in
*"-m venv "*)
  for last; do :; done
  mkdir -p "$last/bin"
  cat > "$last/bin/python" <<END
#!/bin/sh
echo "\$@" >> "$ASKED"
[ -z "\$PIP_FAILS" ] || exit 1
printf '#!/bin/sh\necho "\$0 \$*" >> "$ASKED"\n[ -z "\$TRYING_FAILS" ] || exit 2\n' > "$last/bin/trunkline"
echo '[ -z "\$REAL" ] || exec "\$REAL" "\$@"' >> "$last/bin/trunkline"
chmod +x "$last/bin/trunkline"
END
  chmod +x "$last/bin/python"
  ;;
*ensurepip*) [ -z "$NO_VENV" ] || exit 1 ;;
esac
"""
#: Notes what it is asked, and does not start a version whose folder is named in a file.
_SYSTEMCTL = r"""#!/bin/sh
echo "systemctl $*" >> "$ASKED"
[ "$1" != restart ] || [ "$(readlink "$DESTDIR/opt/trunkline")" != "$(cat "$BROKEN" 2>/dev/null)" ]
"""


class Machine:
    def __init__(self, folder: Path) -> None:
        self.root, self.asked = folder / "root", folder / "asked"
        self.python = folder / "python"
        self.python.write_text(_PYTHON, encoding="utf-8")
        self.systemctl, self.broken = folder / "systemctl", folder / "broken"
        self.systemctl.write_text(_SYSTEMCTL, encoding="utf-8")
        for program in (self.python, self.systemctl):
            program.chmod(0o755)

    def environment(self, **more: str) -> dict[str, str]:
        given = {"DESTDIR": self.root, "PYTHON": self.python, "ASKED": self.asked, "BROKEN": self.broken}
        return {"PATH": os.environ["PATH"], **{name: str(value) for name, value in given.items()}, **more}

    def install(self, *words: str, status: int = 0, **more: str) -> str:
        run = subprocess.run(
            [ROOT / "install.sh", *words],
            env=self.environment(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        assert run.returncode == status, run.stdout
        return run.stdout

    @property
    def version(self) -> str:
        """The folder of the version in use, whose program runs."""
        link = self.root / "opt/trunkline"
        subprocess.run([link / "bin/trunkline"], env=self.environment(), check=True, timeout=60)
        return str(link.readlink())

    @property
    def versions(self) -> set[str]:
        return {path.name for path in (self.root / "opt").iterdir() if not path.is_symlink()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_it_installs_what_the_readme_says(machine: Machine) -> None:
    machine.install()
    pip, checked, tried = machine.asked.read_text(encoding="utf-8").splitlines()
    assert pip == "-m deploy.install --extras learning,streams"
    assert "serve --check --config config/example.toml" in checked
    assert "serve --dry-start --config config/example.toml" in tried
    units = {path.name for path in (machine.root / "etc/systemd/system").iterdir()}
    assert units == {"trunkline.service", "trunkline-backup.service", "trunkline-backup.timer"}
    assert (machine.root / "usr/local/bin/trunkline").readlink() == Path("/opt/trunkline/bin/trunkline")
    assert load_settings(machine.root / "etc/trunkline/trunkline.toml", {}).http.bind is not None


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("--extras", "tracing"), "learning,streams,tracing"),
        (("--extras", "none"), ""),
        (("--without-hashes",), "learning,streams --without-hashes"),
    ],
)
def test_more_and_less_can_be_installed(machine: Machine, words: tuple[str, ...], asked: str) -> None:
    machine.install(*words)
    assert f"-m deploy.install --extras {asked}\n" in machine.asked.read_text(encoding="utf-8")


def test_models_and_streams_are_installed_on_every_way() -> None:
    assert extras_of("") == ("learning", "streams")
    assert extras_of("tracing") == ("learning", "streams", "tracing")
    assert extras_of("none") == ()
    ways = [(ROOT / name).read_text(encoding="utf-8") for name in ("install.sh", "Makefile", "Containerfile")]
    documented = [line for way in ways for line in way.splitlines() if "-m deploy.install" in line]
    assert len(documented) >= 4
    for line in documented:
        assert re.search(r'--extras (learning,streams|"\$\{EXTRAS\}"|"\$extras")', line)
    assert "ARG EXTRAS=learning,streams" in ways[2]
    assert "\nextras=learning,streams\n" in ways[0]


@pytest.mark.parametrize(
    ("fails", "said"), [("PIP_FAILS", "nothing was changed"), ("TRYING_FAILS", "nothing was changed")]
)
def test_an_upgrade_keeps_the_configuration_and_a_failed_one_the_program(
    machine: Machine, fails: str, said: str
) -> None:
    machine.install()
    config = machine.root / "etc/trunkline/trunkline.toml"
    config.write_text("# mine\n", encoding="utf-8")
    first = machine.version
    assert said in machine.install(status=1, **{fails: "1"})
    assert (machine.version, machine.versions) == (first, {first})
    machine.install()
    second = machine.version
    assert second != first
    assert machine.versions == {first, second}
    assert config.read_text(encoding="utf-8") == "# mine\n"
    machine.install()
    assert machine.versions == {second, machine.version}


def test_the_folder_of_an_older_install_script_becomes_a_version(machine: Machine) -> None:
    old = machine.root / "opt/trunkline/bin"
    old.mkdir(parents=True)
    (old / "trunkline").write_text("#!/bin/sh\n", encoding="utf-8")
    machine.install()
    assert machine.versions == {"trunkline-before", machine.version}


def test_a_version_that_does_not_start_is_taken_back(machine: Machine) -> None:
    machine.install()
    first, unit = machine.version, machine.root / "etc/systemd/system/trunkline.service"
    unit.write_text("# of the version before\n", encoding="utf-8")
    machine.install(SYSTEMCTL=str(machine.systemctl))
    second = machine.version
    assert second != first
    unit.write_text("# of the version before\n", encoding="utf-8")
    machine.broken.write_text(first, encoding="utf-8")  # its folder is gone, so the next version gets its name
    said = machine.install(status=1, SYSTEMCTL=str(machine.systemctl))
    assert "the version of before runs" in said
    assert machine.version == second
    assert unit.read_text(encoding="utf-8") == "# of the version before\n"
    assert machine.asked.read_text(encoding="utf-8").count("systemctl restart trunkline.service") == 3


def test_an_upgrade_that_is_killed_at_any_moment_leaves_a_version_that_works(machine: Machine) -> None:
    """Its remains do not hinder the next upgrade."""
    machine.install()
    seed = random.Random(46)  # noqa: S311 - of a test
    began = time.monotonic()
    machine.install()
    takes = time.monotonic() - began
    for _ in range(50):
        before = machine.version
        process = subprocess.Popen(
            [ROOT / "install.sh"],
            env=machine.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(takes * seed.uniform(0.0, 1.1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert machine.version in machine.versions
        assert before in machine.versions
    assert "nothing was changed" in machine.install(status=1, PIP_FAILS="1")
    assert machine.version
    machine.install()
    assert len(machine.versions) == 2


@in_ci
def test_an_upgrade_with_a_broken_configuration_says_what_is_wrong_and_changes_nothing(machine: Machine) -> None:
    machine.install()
    first, config = machine.version, machine.root / "etc/trunkline/trunkline.toml"
    config.write_text(
        f'state_dir = "{machine.root}/state"\ncolour = 1\n[http]\nbind = "127.0.0.1:0"\n', encoding="utf-8"
    )
    said = machine.install(status=1, REAL=str(TRUNKLINE))
    assert f"{config}: colour" in said
    assert "nothing was changed" in said
    assert (machine.version, machine.versions) == (first, {first})


#: On a disk of its own, whose first and last word are versions.
_ON_A_FULL_DISK = """set -eu
mount -t tmpfs -o size=1m tmpfs "$DESTDIR"
./install.sh >&2
readlink "$DESTDIR/opt/trunkline"
dd if=/dev/zero of="$DESTDIR/fill" bs=4k >&2 2>/dev/null || true
for attempt in 1 2; do
  if ./install.sh >&2; then echo "it was installed on a full disk"; fi
  "$DESTDIR/opt/trunkline/bin/trunkline"
  readlink "$DESTDIR/opt/trunkline"
done
rm "$DESTDIR/fill"
./install.sh >&2
"$DESTDIR/opt/trunkline/bin/trunkline"
readlink "$DESTDIR/opt/trunkline"
"""


def test_an_upgrade_on_a_full_disk_keeps_the_version_of_before(machine: Machine) -> None:
    machine.root.mkdir()
    words = [require_program("unshare"), "--mount", "sh", "-c", _ON_A_FULL_DISK]
    if subprocess.run([*words[:2], "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine makes no other disk")
    run = subprocess.run(
        words, cwd=ROOT, env=machine.environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    first, *kept, last = run.stdout.splitlines()
    assert kept == [first, first]
    assert last != first
    assert run.stderr.count("nothing was changed") == 2


#: Stands before `mv` in the path: when the link was moved, the disk is full.
_FILLING_MV = """#!/bin/sh
/bin/mv "$@" || exit
case "$*" in *"$DESTDIR/opt/trunkline") dd if=/dev/zero of="$DESTDIR/fill" bs=4k 2>/dev/null ;; esac
exit 0
"""
_A_DISK_THAT_FILLS = """set -eu
mount -t tmpfs -o size=1m tmpfs "$DESTDIR"
./install.sh >&2
echo '# of before' | tee "$DESTDIR"/etc/systemd/system/*.* >&2
cp -rl "$DESTDIR/etc/systemd/system" "$DESTDIR/kept" # what is replaced leaves no room
former=$(readlink "$DESTDIR/opt/trunkline")
PATH="$FILLING:$PATH" ./install.sh >&2
test -s "$DESTDIR/fill"
"$DESTDIR/opt/trunkline/bin/trunkline"
test "$(readlink "$DESTDIR/opt/trunkline")" != "$former"
test "$(readlink "$DESTDIR/usr/local/bin/trunkline")" = /opt/trunkline/bin/trunkline
for unit in systemd/*.service systemd/*.timer; do cmp "$unit" "$DESTDIR/etc/systemd/system/$(basename "$unit")"; done
rm "$DESTDIR/fill"
./install.sh >&2
find "$DESTDIR/etc/systemd" "$DESTDIR/opt" "$DESTDIR/usr/local/bin" -maxdepth 2 -name '.*'
"""


def test_a_disk_that_fills_when_the_version_was_switched_changes_nothing_about_it(
    machine: Machine, tmp_path: Path
) -> None:
    """Everything that the switch needs on the disk was written before it."""
    machine.root.mkdir()
    (tmp_path / "filling").mkdir()
    shim = tmp_path / "filling/mv"
    shim.write_text(_FILLING_MV, encoding="utf-8")
    shim.chmod(0o755)
    words = [require_program("unshare"), "--mount", "sh", "-c", _A_DISK_THAT_FILLS]
    if subprocess.run([*words[:2], "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine makes no other disk")
    given = machine.environment(FILLING=str(tmp_path / "filling"))
    run = subprocess.run(words, cwd=ROOT, env=given, capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stdout) == (0, ""), run.stderr


def test_a_failed_first_installation_leaves_nothing(machine: Machine) -> None:
    machine.install(status=1, PIP_FAILS="1")
    assert list((machine.root / "opt").iterdir()) == []


def test_uninstalling_leaves_configuration_and_data(machine: Machine) -> None:
    machine.install()
    data = machine.root / "var/lib/private/trunkline"
    data.mkdir(parents=True)
    machine.install("--uninstall")
    left = {str(path.relative_to(machine.root)) for path in machine.root.rglob("*") if not path.is_dir()}
    assert left == {"etc/trunkline/trunkline.toml"}
    assert data.exists()


@pytest.mark.parametrize(
    ("words", "more", "said"),
    [
        (("--purge",), {}, "there is no option --purge (allowed: --extras LIST, --without-hashes, --uninstall)"),
        (("--extras",), {}, "--extras needs a list"),
        ((), {"NO_VENV": "1"}, "has no venv: install it"),
        ((), {"PYTHON": "/nothing/python"}, "/nothing/python is not Python 3.11 or newer"),
    ],
)
def test_what_cannot_be_done_is_said(machine: Machine, words: tuple[str, ...], more: dict[str, str], said: str) -> None:
    assert said in machine.install(*words, status=1, **more)
    assert not machine.root.exists()


@pytest.mark.parametrize(
    "name",
    ["Containerfile", "deploy/trunkline.container", "deploy/trunkline.volume", "install.sh", "docs/operate/install.md"],
)
def test_files_that_were_not_tested_say_so(name: str) -> None:
    """Remove the words, and the name here, when one of them was tested."""
    assert re.search(r"(?i)\bnot tested yet\b", (ROOT / name).read_text(encoding="utf-8"))


def test_the_image_is_built_of_what_is_in_the_tree() -> None:
    """No container was built here; what can be compared is."""
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    for sources in re.findall(r"(?m)^COPY (?!--from)(.*) \S+$", text):
        for source in sources.split():
            assert (ROOT / source).exists(), source
    bound = dict(re.findall(r"TRUNKLINE_(HTTP|MQTT)_BIND=0\.0\.0\.0:(\d+)", text))
    example = load_settings(ROOT / "config/example.toml", {})
    assert example.http.bind is not None
    assert example.mqtt.bind is not None
    assert bound == {"HTTP": str(example.http.bind.port), "MQTT": str(example.mqtt.bind.port)}
    assert re.findall(r"EXPOSE (.*)", text) == [f"{bound['HTTP']}/tcp {bound['MQTT']}/tcp"]
    assert str(example.state_dir) in re.findall(r"VOLUME (.*)", text)
    unit = ConfigParser(strict=False, interpolation=None, allow_no_value=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "deploy/trunkline.container", encoding="utf-8")
    assert set(unit.sections()) == {"Unit", "Container", "Service", "Install"}
    assert unit["Container"]["Volume"] == f"trunkline.volume:{example.state_dir}"
    assert (ROOT / "deploy/trunkline.volume").exists()
