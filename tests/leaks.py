"""Searches the output of all tests and of all daemons that they start for secrets.

Known are all secrets that pass through `broker/secrets.py`, in the process of the tests and in the commands that
tests/fork_server.py forks: tokens and codes, also refused ones, passwords, and what is sealed. The forms of others are
patterns. tests/conftest.py has each test fail in whose output a secret stands. tests/e2e/test_secrets.py goes further,
for one run.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

from broker import secrets

#: Keys, tokens of other services, and addresses of one-time codes, by how they begin.
_PATTERNS: Final = {
    "-----BEGIN ": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "AKIA": re.compile(r"\bAKIA[0-9A-Z]{16}\b"),
    "ASIA": re.compile(r"\bASIA[0-9A-Z]{16}\b"),
    **{f"gh{kind}_": re.compile(rf"\bgh{kind}_[A-Za-z0-9]{{36}}\b") for kind in "pousr"},
    "github_pat_": re.compile(r"\bgithub_pat_\w{50,}"),
    "k_live_": re.compile(r"\b[rs]k_live_[A-Za-z0-9]{10,}"),
    "whsec_": re.compile(r"\bwhsec_[A-Za-z0-9+/]{30,}=?"),
    "xox": re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}"),
    "eyJ": re.compile(r"\beyJ[A-Za-z0-9_-]{20,}\.eyJ[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{20,}"),
    "$argon2": re.compile(r"\$argon2id?\$v=\d+\$[\w=,]+\$[\w+/]+\$[\w+/]+"),
    "otpauth:": re.compile(r"\botpauth://\S+secret=[A-Z2-7]{16,}"),
}
#: A token of Trunkline as HTTP, a query or JSON has it.
_SHOWN_TOKEN: Final = re.compile(
    r"""(?i)(?:bearer\s+|(?:access_?token|refresh_?token|client_?secret|password|code)["']?\s*[=:]\s*["']?)([0-9a-f]{32})\b"""
)
_WORDS: Final = re.compile(r"[A-Za-z0-9_-]{16,}")
_HEX: Final = re.compile(r"[0-9a-f]{32}")
_LEAST: Final = 12  # characters of a secret that is searched for
#: Addresses, which tests give in the wrong fields, too.
_PUBLIC: Final = re.compile(r"[^@\s]+@[\w.\-]+")
#: A token of Trunkline has more different digits. Tests use others as ids of devices, too: "11" * 16.
_DIGITS_LEAST: Final = 8


def secrets_by_form(text: str) -> list[str]:
    """Keys and tokens of others in a text."""
    return [match[0] for start, form in _PATTERNS.items() if start in text for match in form.finditer(text)]


class KnownSecrets:
    """Secrets and their SHA-256. Those of other processes come through a file in memory."""

    def __init__(self) -> None:
        self.file = os.memfd_create("secrets")
        self._read = 0
        self._words: set[str] = set()
        self._phrases: set[str] = set()

    def begin_worker(self) -> None:
        """Have commands of this process, which was forked, write into a file of its own."""
        self.file = os.memfd_create("secrets")

    def add(self, secret: str) -> None:
        if len(secret) < _LEAST or secret in self._words or secret in self._phrases or _PUBLIC.fullmatch(secret):
            return
        if secret.startswith("$argon2"):
            return  # known by its form; a run makes thousands
        if _HEX.fullmatch(secret) and len(set(secret)) < _DIGITS_LEAST:
            return
        if _WORDS.fullmatch(secret):
            self._words |= {secret, hashlib.sha256(secret.encode()).hexdigest()}
        else:
            self._phrases.add(secret)

    def _add_those_of_commands(self) -> None:
        more = os.pread(self.file, 1 << 24, self._read)
        self._read += len(more)
        for line in more.splitlines():
            self.add(json.loads(line))

    def found_in(self, text: str) -> Iterator[str]:
        """The secrets in a text, each with a piece of what stands around it."""
        self._add_those_of_commands()
        found = {word for word in {*_WORDS.findall(text), *_HEX.findall(text)} if word in self._words}
        found |= {phrase for phrase in self._phrases if phrase in text}
        found |= {*secrets_by_form(text), *(match[1] for match in _SHOWN_TOKEN.finditer(text))}
        for one in sorted(found):
            at = text.index(one)
            yield f"{one!r} in {text[max(0, at - 200) : at + len(one) + 50]!r}"


def record(note: Callable[[str], None]) -> None:
    """Have `note` called with each secret that this process hashes, seals, opens or compares."""

    def noting(method: Callable[..., Any], *, argument: int | None) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            result = method(*arguments)
            note(result if argument is None else arguments[argument])
            return result

        return noted

    def sha256(data: bytes) -> Any:
        note(data.decode())
        return hashlib.sha256(data)

    vars(secrets)["hashlib"] = SimpleNamespace(sha256=sha256)
    for owner, name, argument in (
        (secrets.Vault, "seal", 1),
        (secrets.Vault, "open", None),
        (secrets.Passwords, "hash", 1),
        (secrets.Passwords, "matches", 2),
    ):
        setattr(owner, name, noting(getattr(owner, name), argument=argument))


def record_into(file: int) -> None:
    """As `record`, for a process whose secrets another one reads from `KnownSecrets.file`."""
    seen: set[str] = set()

    def note(secret: str) -> None:
        if secret not in seen:
            seen.add(secret)
            os.write(file, json.dumps(secret).encode() + b"\n")

    record(note)


KNOWN: Final = KnownSecrets()
#: What daemons and commands wrote into files since the last test.
_heard: list[str] = []


def heard(text: str) -> None:
    """Text that a daemon or a command has written elsewhere than into the output of the tests."""
    _heard.append(text)


def taken() -> str:
    text = "\n".join(_heard)
    _heard.clear()
    return text
