"""The words of this service in notices and mails about alarms, by the language of the account (reference 12.13)."""

from collections.abc import Mapping
from typing import Final

import msgspec

from config.languages import ENGLISH


class AlarmWords(msgspec.Struct, frozen=True):
    info: str
    warning: str
    critical: str
    colon: str
    alarms: str
    times: str
    more: str
    acknowledge: str
    test: str
    test_text: str

    def headed(self, severity: str, text: str) -> str:
        """A text behind its severity."""
        return f"{getattr(self, severity)}{self.colon} {text}"


_WORDS: Final[Mapping[str, AlarmWords]] = {
    ENGLISH: AlarmWords(
        info="Info",
        warning="Warning",
        critical="Critical",
        colon=":",
        alarms="{count} alarms",
        times="{text} ({count} times)",
        more="and {count} more",
        acknowledge="Acknowledge",
        test="Test",
        test_text="This is how Trunkline tells of an alarm.",
    ),
    "de": AlarmWords(
        info="Hinweis",
        warning="Warnung",
        critical="Kritisch",
        colon=":",
        alarms="{count} Alarme",
        times="{text} ({count} Mal)",
        more="und {count} weitere",
        acknowledge="Bestätigen",
        test="Test",
        test_text="So erfahren Sie von Trunkline von einem Alarm.",
    ),
    "fr": AlarmWords(
        info="Information",
        warning="Avertissement",
        critical="Critique",
        colon=" :",
        alarms="{count} alarmes",
        times="{text} ({count} fois)",
        more="et {count} autres",
        acknowledge="Acquitter",
        test="Essai",
        test_text="C’est ainsi que Trunkline vous avertit d’une alarme.",
    ),
}


def words_in(language: str | None) -> AlarmWords:
    """Of a language; None: English."""
    return _WORDS.get(language or ENGLISH, _WORDS[ENGLISH])
