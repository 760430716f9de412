"""Secrets: sealed if they must be readable again, otherwise hashed."""

import subprocess
import sys
from dataclasses import replace

import pytest
from argon2.profiles import RFC_9106_LOW_MEMORY
from cryptography.fernet import InvalidToken

from broker.secrets import Passwords, Vault, token_hash


def test_a_sealed_secret_opens_with_its_key_and_no_other() -> None:
    key = Vault.new_key()
    sealed = Vault(key).seal("s3cret ä")
    assert b"s3cret" not in sealed
    assert Vault(key).open(sealed) == "s3cret ä"
    with pytest.raises(InvalidToken):
        Vault(Vault.new_key()).open(sealed)
    with pytest.raises(InvalidToken):
        Vault(key).open(sealed[:-1] + b"A")


def test_the_same_secret_is_sealed_differently_each_time() -> None:
    vault = Vault(Vault.new_key())
    assert vault.seal("x") != vault.seal("x")


@pytest.mark.parametrize("key", [b"", b"short", b"!" * 44])
def test_a_bad_key_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match="Fernet key"):
        Vault(key)


def test_a_token_is_kept_as_its_sha_256() -> None:
    assert token_hash("abc").hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_password_costs_what_a_small_gateway_can_afford() -> None:
    """It runs in a process of its own, because tests hash passwords at a lower cost."""
    program = "from broker.secrets import Passwords; print(Passwords().hash('correct horse'))"
    run = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True, timeout=60)
    assert run.stdout.startswith("$argon2id$v=19$m=19456,t=2,p=1$")


def test_a_hash_at_another_cost_matches_and_is_outdated() -> None:
    before, now = Passwords(replace(RFC_9106_LOW_MEMORY, memory_cost=32)), Passwords()
    hashed = before.hash("correct horse")
    assert hashed.startswith("$argon2id$v=19$m=32,t=3,p=4$")
    assert now.matches(hashed, "correct horse")
    assert now.is_outdated(hashed)
    assert not now.is_outdated(now.hash("correct horse"))


def test_an_operator_may_have_passwords_take_more_memory() -> None:
    assert "$m=32768," in Passwords.taking(32).hash("correct horse")


def test_passwords_match_their_own_hash_only() -> None:
    passwords = Passwords()
    hashed = passwords.hash("correct horse")
    assert hashed.startswith("$argon2id$")
    assert passwords.matches(hashed, "correct horse")
    assert not passwords.matches(hashed, "Correct horse")
    assert not passwords.matches("", "correct horse")
    assert not passwords.matches("plain", "plain")
