"""What is no TOML, or too much of it, is a ValueError that says so."""

import pytest

from config.limits import JSON_NESTING_MAX
from config.toml import read_toml


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a = ", "Invalid value"),
        ("a = " + "9" * 5_000, "limit"),
        ("a = 9223372036854775808", "64 bits"),
        ("a = [{b = -9223372036854775809}]", "64 bits"),
        ("a = " + "[" * 60_000, "levels"),
        ("a = " + "[" * JSON_NESTING_MAX + "]" * JSON_NESTING_MAX, "levels"),
        ("[" + ".".join("a" * 5_000) + "]", "levels"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_toml(text)


def test_what_can_be_read_is_read() -> None:
    assert read_toml('a = [1, -9223372036854775808]\n[b]\nc = "d"') == {"a": [1, -(2**63)], "b": {"c": "d"}}
