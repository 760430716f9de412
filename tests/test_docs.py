"""Documents are true, the example configuration and the commands in the README, and comments have plain words."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, get_type_hints

import click
import msgspec
import pytest

from config.loading import load_settings
from config.settings import Settings
from protocols.cli import main
from tests.rows import each_row
from tests.test_security import broken_links

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "config" / "example.toml"

#: Phrases that a stranger has to read twice, and the most lines of the product and of docs/ with each. Write instead
#: what the thing is or does ("Result of …", "Up to `limit` rows", "unless it has changed since"). Never raise a number.
PUZZLING_PHRASES = (
    (r'"""(What|Who|Whose|Whom|Those|From now on|The same) ', 0),
    (r"(#:?|//) (What|Who|Whose|Whom|Those) ", 0),
    (r"[.:;] (What|Who|Those) ", 0),
    (r"\bthose (that|who|which)\b", 0),
    (r"\bso many\b", 0),
    (r"\b[Mm]eanwhile\b", 2),
    (r"\banew\b", 0),
    (r"\b(short|long) way\b", 0),
    (r"\bin turns with\b", 0),
)


def settings_keys(kind: type, prefix: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        inner = get_type_hints(kind)[field.name]
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            yield from settings_keys(inner, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def document_keys(document: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in document.items():
        if isinstance(value, dict):
            yield from document_keys(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def uncommented() -> str:
    """The example with every setting in force."""
    return re.sub(r"(?m)^#(?=\w+ = )", "", EXAMPLE.read_text(encoding="utf-8"))


def test_example_configuration_loads_as_it_is() -> None:
    settings = load_settings(EXAMPLE, {})
    assert settings.http.bind is not None
    assert settings.http.bind.host == "127.0.0.1"


def test_example_configuration_loads_with_every_setting_in_force(tmp_path: Path) -> None:
    path = tmp_path / "all.toml"
    path.write_text(uncommented(), encoding="utf-8")
    load_settings(path, {})


def test_example_configuration_has_every_key() -> None:
    assert sorted(document_keys(tomllib.loads(uncommented()))) == sorted(settings_keys(Settings))


def stated_defaults() -> dict[str, str]:
    """The default of each setting according to the comment before it."""
    table, comment, stated = "", "", {}
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        if (header := re.fullmatch(r"\[(\w+)\]", line)) is not None:
            table = f"{header[1]}."
        elif (setting := re.match(r"#?(\w+) = ", line)) is not None:
            if (default := re.search(r"Default: (\S+?)\.?$", comment)) is not None:
                stated[table + setting[1]] = default[1]
            comment = ""
        else:
            comment = line
    return stated


def test_example_configuration_states_the_true_defaults() -> None:
    spelled = {"": "none", "True": "true", "False": "false", "()": "none"}
    settings, actual = Settings(state_dir=Path()), {}
    for key in stated_defaults():
        value = str(attrgetter(key)(settings))
        actual[key] = spelled.get(value, value)
    assert len(actual) >= 15
    assert stated_defaults() == actual


DOCUMENTS = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))


def shown_commands() -> list[str]:
    """Every `trunkline …` and `make …` line in the code blocks of the README and of docs/."""
    blocks = [
        block
        for path in DOCUMENTS
        for block in re.findall(r"(?m)^```.*\n((?:.*\n)*?)```$", path.read_text(encoding="utf-8"))
    ]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if re.match(r"\s*(\$ )?(\S+=\S+ )*(\S*/)?(trunkline|make) \w", line)]


def test_the_readme_has_the_commands_of_a_developer() -> None:
    assert {"make run", "make check", "make test", "make deb"} <= {
        line.partition("#")[0].strip() for line in shown_commands()
    }


@each_row("line", shown_commands())
def test_a_shown_command_exists(line: str) -> None:
    words = line.partition("#")[0].split()
    program = next(index for index, word in enumerate(words) if re.fullmatch(r"(.*/)?(trunkline|make)", word))
    name, *arguments = words[program + 1 :]
    if words[program].endswith("make"):
        assert re.search(rf"(?m)^{re.escape(name)}:", (ROOT / "Makefile").read_text(encoding="utf-8"))
        return
    command = main.get_command(click.Context(main), name)
    assert command is not None
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        if (inner := command.get_command(click.Context(command), arguments[0])) is None:
            break  # an argument of the group's own
        command, arguments = inner, arguments[1:]
    options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert {word.partition("=")[0] for word in arguments if word.startswith("--")} <= options


@each_row("path", DOCUMENTS)
def test_links_lead_to_files_and_headings(path: Path) -> None:
    found = broken_links(path, path.read_text(encoding="utf-8"))
    assert [link for link in found if not link.startswith(("/docs/api/", "/docs/lwm2m-objects"))] == []


@cache
def puzzling_lines() -> list[tuple[str, str]]:
    """Each line that has one of the phrases, after its place."""
    files = [
        path
        for package in ("broker", "protocols", "storage", "config")
        for path in (ROOT / package).rglob("*")
        if path.suffix in {".py", ".js", ".html", ".css"}
    ]
    any_phrase = re.compile("|".join(phrase for phrase, _ in PUZZLING_PHRASES))
    return [
        (f"{path.relative_to(ROOT)}:{number}", line)
        for path in (*sorted(files), *sorted((ROOT / "docs").rglob("*.md")))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if any_phrase.search(line)
    ]


@each_row(("phrase", "most"), PUZZLING_PHRASES)
def test_the_words_are_plain(phrase: str, most: int) -> None:
    found = [f"{place}: {line.strip()}" for place, line in puzzling_lines() if re.search(phrase, line)]
    assert len(found) <= most, "\n".join(found)


def test_the_readme_is_short() -> None:
    """Documents are for the rest."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130
