"""The texts of the pages in English, German and French (reference 1.6)."""

import json
import re
from collections.abc import Iterator
from time import process_time
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import TooManyAttempts
from broker.words import Words
from config.languages import ENGLISH, LANGUAGES
from protocols.http import texts
from protocols.http.texts import TEXTS, Form, alike, preferred, reason_of, rich, said
from tests.properties import drawn
from tests.rows import each_row
from tests.texts import (
    FILE,
    Text,
    every_key,
    file_of,
    keys_of_script,
    keys_of_template,
    literals_of_script,
    literals_of_template,
    scripts,
    templates,
)

pytestmark = pytest.mark.slow


_TRANSLATED: Final = set(LANGUAGES) - {ENGLISH}
_NAME: Final = re.compile(r"\{\w*\}")
_ELEMENT: Final = re.compile(r"</?\w+[^>]*>")


def forms(form: Form) -> Iterator[str]:
    yield from [form] if isinstance(form, str) else form.values()


@pytest.fixture(params=sorted(_TRANSLATED))
def spoken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    language: str = request.param
    monkeypatch.setattr(texts, "language", lambda: language)
    return language


# The file


def test_every_text_has_german_and_french() -> None:
    missing: dict[str, Text] = {}
    for text in every_key():
        if set(TEXTS.get(text, ())) != _TRANSLATED:
            missing.setdefault(text, text)
    assert not missing, "\n".join(f"{one.place}: {one}" for one in missing.values())


def test_the_file_has_no_text_that_nothing_uses() -> None:
    assert set(TEXTS) - set(every_key()) == set()


def test_a_translation_has_the_placeholders_and_elements_of_the_english_text() -> None:
    wrong = [
        f"{language}: {key} / {text}"
        for key, translated in TEXTS.items()
        for language, form in translated.items()
        for text in forms(form)
        for pattern in (_NAME, _ELEMENT)
        if sorted(pattern.findall(text)) != sorted(pattern.findall(key))
    ]
    assert wrong == [], "\n".join(wrong)


def test_a_plural_has_its_forms_in_every_language() -> None:
    for key, translated in TEXTS.items():
        kinds = {type(form) for form in translated.values()}
        assert len(kinds) == 1, key
        assert all(isinstance(form, str) or set(form) == {"one", "other"} for form in translated.values()), key


def test_texts_are_clean() -> None:
    """French puts a space that does not break before `:;?!`; nothing ends in white space."""
    for key, translated in TEXTS.items():
        for language, form in translated.items():
            for text in forms(form):
                assert text == text.strip() or key != key.strip(), f"{language}: {text!r}"
                assert text, key
                if language == "fr":
                    plain = re.sub(r"https?://\S+|\d:\d|\{\w*\}|&\w+;|[\w-]+:\w+|/\S+", "", text)
                    assert not re.search(r"[^\u00a0\u202f:?!](?:[;?!]|:(?= |$))", plain), (
                        f"no space that holds: {text!r}"
                    )


def test_the_file_is_sorted_so_that_changes_meet_seldom() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert text == file_of(json.loads(text)), "python -m tests.texts --sort"


# The sources


@each_row(("name", "source"), list(templates()))
def test_no_template_has_a_text_that_is_not_translated(name: str, source: str) -> None:
    assert literals_of_template(source) == [], name


def test_no_script_has_a_text_that_is_not_translated() -> None:
    found = [literal for name, source in scripts() for literal in literals_of_script(name, source)]
    assert found == [], "\n".join(found)


def test_a_literal_in_a_script_is_found() -> None:
    source = 'h("p", { class: "small quiet" }, "Nothing yet.", _("Nothing yet."), `${count} devices found`, "p")'
    assert [one.rpartition(": ")[2] for one in literals_of_script("x.js", source)] == [
        "Nothing yet.",
        "${count} devices found",
    ]
    assert list(keys_of_script("x.js", 'plural("{count} day", "{count} days", 2), phrase("until {when}", {})')) == [
        "{count} days",
        "until {when}",
    ]


def test_a_literal_in_a_template_is_found() -> None:
    assert literals_of_template('<p>Hello</p><p title="Hint">{{ "Yes" if so else "No" }}</p>') == [
        "Yes",
        "No",
        "Hello",
        "Hint",
    ]
    assert literals_of_template('<p>{{ _("Hello") }} <b>{{ name }}</b> · 12</p>') == []
    assert list(keys_of_template("", '{{ plural("{count} day", "{count} days", count=2) }}')) == ["{count} days"]


def test_a_long_text_of_strangers_is_looked_at_in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "language", lambda: "de")
    began = process_time()
    for key in drawn(list(TEXTS), 5):
        parts = re.split(r"\{\w+\}", key)
        text = (parts[0] + "".join(f"x{part}" for part in parts[1:-1]) * 2_000)[:16_000] + "\0"
        alike(text)
    assert process_time() - began < 10  # one alone took a minute


# The language of a request


@each_row(
    ("header", "language"),
    [
        ("", "en"),
        ("de", "de"),
        ("DE-at", "de"),
        ("de-CH-1996, fr;q=0.9", "de"),
        ("fr-CH, fr;q=0.9, en;q=0.8, de;q=0.7, *;q=0.5", "fr"),
        ("es, de;q=0.4, fr;q=0.6", "fr"),
        ("en-US,en;q=0.9,de;q=0.8", "en"),
        ("de;q=0, fr;q=0.1", "fr"),
        ("de;q=0", "en"),
        ("de;q=2, fr;q=x, en", "en"),
        ("*", "en"),
        ("nl, pt", "en"),
        (",;,=;q", "en"),
        ("x," * 10_000 + "de", "en"),
    ],
)
def test_the_browser_prefers_a_language(header: str, language: str) -> None:
    assert preferred(header) == language


@given(st.text())
def test_any_header_gives_a_language(header: str) -> None:
    assert preferred(header) in LANGUAGES


# Saying


def test_names_stay_as_they_are(spoken: str) -> None:
    assert "<b>" in said("Signed in as {address}.", address="<b>")
    assert "&lt;b&gt;" in rich("for <strong>{address}</strong>", address="<b>")
    assert said("{not a name}") == "{not a name}"


def test_a_sentence_in_a_sentence_is_translated_too(spoken: str) -> None:
    types = Words("{names}, and later ones", names="Light")
    whole = said(Words("{name} is among your devices now.", name=types))
    assert whole.startswith({"de": "Light und spätere", "fr": "Light et les suivants"}[spoken])


def test_a_reason_is_translated_by_its_pattern(spoken: str) -> None:
    assert reason_of(TooManyAttempts(30)).endswith({"de": "in 30 Sekunden erneut", "fr": "dans 30 secondes"}[spoken])
    length = alike("A password has 8 to 1024 characters.")
    assert (
        length
        == {"de": "Ein Passwort hat 8 bis 1024 Zeichen.", "fr": "Un mot de passe a de 8 à 1024 caractères."}[spoken]
    )
    assert alike("Nobody has translated this.") == "Nobody has translated this."


def test_without_a_request_it_is_english() -> None:
    assert said("Devices") == "Devices"
