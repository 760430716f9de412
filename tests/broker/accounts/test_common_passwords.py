"""The passwords that everybody tries first."""

import sys

from broker.accounts.common_passwords import _common_passwords, is_common_password
from config.limits import PASSWORD_MIN_CHARACTERS
from tests.rows import each_row


@each_row("password", ["12345678", "password", "Password1", "QWERTYUIOP", "trustno1"])
def test_common_passwords(password: str) -> None:
    assert is_common_password(password)


@each_row("password", ["", "1234567", "correct horse battery staple", "123456789 ", "\udc80" * 8, "paßword1"])
def test_other_passwords(password: str) -> None:
    assert not is_common_password(password)


def test_the_list_has_what_is_long_enough_and_the_package_is_not_loaded() -> None:
    found = _common_passwords()
    assert 3_000 < len(found) < 10_000
    assert min(map(len, found)) == PASSWORD_MIN_CHARACTERS
    assert not [name for name in sys.modules if name.partition(".")[0] == "zxcvbn"]
