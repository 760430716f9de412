"""SECURITY.md is true as far as a test can tell, and the bill of materials is complete."""

import hashlib
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import httpx
import pytest
from argon2.profiles import CHEAPEST
from packaging.requirements import Requirement

from broker.secrets import Passwords
from tests.daemon import Daemon, bearer
from tests.leaks import KNOWN, KnownSecrets, secrets_by_form, taken
from tests.properties import in_ci
from tests.test_reference import tracked_files

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parent.parent
SECURITY = ROOT / "SECURITY.md"
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_ROW = re.compile(r"^\| (OSPS-[A-Z]{2}-\d\d\.\d\d) [^|]+\| (met|not met|owner) \| (.+) \|$", re.MULTILINE)

#: Level 1 of version 2026.08.28.
LEVEL_1 = """
AC-01.01 AC-02.01 AC-03.01 AC-03.02 BR-01.01 BR-01.03 BR-03.01 BR-03.02 BR-07.01 DO-01.01 DO-02.01 GV-02.01 GV-03.01
LE-02.01 LE-02.02 LE-03.01 LE-03.02 QA-01.01 QA-01.02 QA-02.01 QA-04.01 QA-05.01 QA-05.02 VM-02.01
"""


def anchor(heading: str) -> str:
    """As hosts of repositories make it: lower case, blanks as dashes, without punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def broken_links(path: Path, text: str) -> Iterator[str]:
    """Links of a Markdown file to files and headings that do not exist; links to other sites are not looked at."""
    for link in _LINK.findall(text):
        file, _, wanted = link.partition("#")
        target = path.parent / file if file else path
        if link.startswith("https://"):
            continue
        if not target.exists() or (wanted and wanted not in anchors_of(target)):
            yield link


def anchors_of(path: Path) -> set[str]:
    return set(map(anchor, _HEADING.findall(path.read_text(encoding="utf-8"))))


def test_links_lead_to_files_and_headings() -> None:
    text = SECURITY.read_text(encoding="utf-8")
    assert len(_LINK.findall(text)) > 30
    assert list(broken_links(SECURITY, text)) == []


@pytest.mark.parametrize("link", ["nothing", "README.md#no", "#no", "http://example.org"])
def test_a_broken_link_would_be_found(link: str) -> None:
    assert list(broken_links(SECURITY, f"[x]({link})")) == [link]


def test_each_requirement_of_level_1_is_in_the_table_once() -> None:
    rows = _ROW.findall(SECURITY.read_text(encoding="utf-8"))
    assert [name.removeprefix("OSPS-") for name, _, _ in rows] == LEVEL_1.split()


def test_what_is_met_says_where() -> None:
    """QA-04.01 is met by there being nothing else."""
    rows = _ROW.findall(SECURITY.read_text(encoding="utf-8"))
    without = {name for name, state, where in rows if state == "met" and not _LINK.search(where)}
    assert without == {"OSPS-QA-04.01"}


#: Data of tests, which a command in the same folder makes and nothing runs.
_DATA = ("tests/fuzz/corpus/", "tests/upgrades/stores/")


def test_the_repository_has_no_binary_file() -> None:
    """Pictures of the documents are excepted, which a reviewer can look at, and data of tests."""
    binary = [path for path in tracked_files() if b"\0" in (ROOT / path).read_bytes()]
    pictures = re.compile(r"docs/images/[\w-]+\.png")
    assert [path for path in binary if not (path.startswith(_DATA) or pictures.fullmatch(path))] == []


@pytest.mark.processes
def test_no_pinned_version_has_a_known_flaw() -> None:
    """Skipped where the index cannot be asked, also in CI: that says nothing about the versions."""
    tool = Path(sys.executable).with_name("pip-audit")
    options = ("--strict", "--no-deps", "--disable-pip", "--progress-spinner", "off", "--requirement")
    command: list[str | Path] = [tool, *options, ROOT / "constraints.txt"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the index of known flaws does not answer within a minute")
    said = run.stdout + run.stderr
    if run.returncode and not re.search(r"Found \d+ known vulnerabilit", said):
        pytest.skip(f"the index of known flaws: {said.strip().splitlines()[-1]}")
    assert run.returncode == 0, said


#: Identifiers and tokens of the documents' examples; there is no other place for them.
_SAMPLES = ("protocols/http/openapi/samples.py", "protocols/http/rest/subscription_shapes.py")
#: The digest of an example, an `id` of an error, and a key of a test that counts up.
_NO_TOKENS = {
    "5eb63bbbe01eeed093cb22bb8f5acdc3",
    "9d0c5f1e4b7a4a2c8e6d3f2b1a0c9e8d",
    "c1d2e3f405162738495a6b7c8d9eafb0",
    "0123456789abcdef0123456789abcdef",
}
_HEX_128_BITS = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")


def secrets_in(text: str) -> list[str]:
    """Keys and tokens of others, and tokens of Trunkline: 32 digits of which ten are different. Tests repeat a few."""
    ours = [one for one in _HEX_128_BITS.findall(text) if len(set(one)) >= 10 and one not in _NO_TOKENS]
    return secrets_by_form(text) + ours


def test_the_tree_has_no_secrets() -> None:
    found = {
        path: some
        for path in tracked_files()
        if path not in _SAMPLES and not path.startswith(_DATA) and not path.endswith(".png")
        if (some := secrets_in((ROOT / path).read_text(encoding="utf-8")))
    }
    assert found == {}


def test_a_secret_in_the_tree_would_be_found() -> None:
    token, key = secrets.token_hex(16), "-----BEGIN EC " + "PRIVATE KEY-----"
    assert secrets_in(f"token = {token!r}") == [token]
    assert secrets_in(f"{key}\nMHcCAQEE") == [key]
    assert secrets_in("33" * 16 + " sha256:" + "0123456789abcdef" * 4) == []


def test_a_known_secret_is_found_in_what_is_logged() -> None:
    known = KnownSecrets()
    token, password = secrets.token_hex(16), f"a long {secrets.token_hex(4)} password"
    stored = Passwords(CHEAPEST).hash(password)
    for secret in (token, password, stored, "ada@example.org", "short"):
        known.add(secret)
    digest = hashlib.sha256(token.encode()).hexdigest()
    for text, number in (
        (f'{{"event": "refused", "token": "x{token}"}}', 1),
        (f"key={digest}", 1),
        (f"sign-in with {password} refused", 1),
        (f"{stored} is not the hash of it", 1),
        (f"GET /x Authorization: Bearer {'5' * 32}", 1),
        ("ada@example.org was short", 0),
    ):
        assert len(list(known.found_in(text))) == number, text


_LEAKY = """
from broker.secrets import token_hash


def test_quiet():
    print("a" * 40)


def test_leak():
    token_hash({token!r})
    print("refused {token}")
"""


@in_ci
@pytest.mark.processes
def test_a_test_whose_output_has_a_secret_fails(tmp_path: Path) -> None:
    path = tmp_path / "test_leaky.py"
    path.write_text(_LEAKY.format(token=secrets.token_hex(16)), encoding="utf-8")
    options = ("-q", "-rN", "-p", "tests.conftest", "--rootdir", tmp_path, "-c", ROOT / "pyproject.toml")
    command: list[str | Path] = [sys.executable, "-m", "pytest", *options, path]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert "2 passed, 1 error" in run.stdout, run.stdout
    assert run.stdout.count("secrets in the output:") == 1
    assert Path(os.environ["TESTS_POSTGRESQL"]).is_dir()  # of this run: the run inside it leaves it alone


@pytest.mark.processes
def test_daemons_of_tests_are_heard_and_their_secrets_are_known(tmp_path: Path) -> None:
    token = secrets.token_hex(16)
    with (tmp_path / "log").open("w") as log:
        daemon = Daemon(tmp_path / "state", log=log)
        daemon.configure(devices=0)
        daemon.start()
        assert httpx.get(f"{daemon.base_url}/users/self", headers=bearer(token), timeout=30).status_code == 401
        daemon.stop()
    assert "http_credentials_refused" in taken()
    assert len(list(KNOWN.found_in(f"refused {token}"))) == 1


def runtime_dependencies(name: str, known: set[str]) -> set[str]:
    """The normalized names of what an installed package needs, directly or not."""
    for text in requires(name) or ():
        requirement = Requirement(text)
        needed = requirement.name.lower().replace("_", "-")
        if needed not in known and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            known.add(needed)
            runtime_dependencies(needed, known)
    return known


@in_ci
@pytest.mark.processes
def test_the_bill_of_materials_names_every_runtime_dependency(tmp_path: Path) -> None:
    """It is made as by `make sbom`, but of this environment, so that no network is needed."""
    bill = tmp_path / "bill.json"
    tool = Path(sys.executable).with_name("cyclonedx-py")
    command: list[str | Path] = [tool, "environment", sys.executable, "--pyproject", ROOT / "pyproject.toml"]
    # Validating takes ten times as long as making it; `make sbom` does it.
    command += ["--mc-type", "application", "--no-validate", "--output-reproducible", "--of", "JSON", "-o", bill]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    made = json.loads(bill.read_text(encoding="utf-8"))
    assert made["bomFormat"] == "CycloneDX"
    assert made["metadata"]["component"]["name"] == "trunkline"
    named = {one["name"].lower().replace("_", "-"): one for one in made["components"]}
    wanted = runtime_dependencies("trunkline", set())
    assert {"trio", "cryptography", "pyotp", "segno", "werkzeug", "cffi"} <= wanted
    assert wanted - named.keys() == set()
    assert [name for name in wanted if not named[name].get("version")] == []
