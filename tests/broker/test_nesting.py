"""The limit on nesting is the same with every Python version: exactly `JSON_NESTING_MAX` levels."""

import json
from collections.abc import Callable

import pytest

from broker.nesting import NestedTooDeeplyError, check_nesting, check_value_nesting, has_too_many_values
from config.limits import BODY_VALUES_MAX, JSON_NESTING_MAX

AT_THE_LIMIT = JSON_NESTING_MAX
BEYOND = JSON_NESTING_MAX + 1


def arrays(levels: int) -> str:
    return "[" * levels + "]" * levels


def objects(levels: int) -> str:
    return '{"[{\\"":' * levels + "1" + "}" * levels


def siblings(levels: int) -> str:
    return "[" + ",".join(["[[]]"] * 1_000 + [arrays(levels - 1)]) + "]"


@pytest.mark.parametrize("nested", [arrays, objects, siblings])
def test_as_many_levels_as_the_limit_and_one_more(nested: Callable[[int], str]) -> None:
    for text in (nested(AT_THE_LIMIT), nested(AT_THE_LIMIT).encode()):
        check_nesting(text)
    check_value_nesting(json.loads(nested(AT_THE_LIMIT)))
    for text in (nested(BEYOND), nested(BEYOND).encode()):
        with pytest.raises(NestedTooDeeplyError, match=f"more than {JSON_NESTING_MAX} levels"):
            check_nesting(text)
    with pytest.raises(NestedTooDeeplyError):
        check_value_nesting(json.loads(nested(BEYOND)))


@pytest.mark.parametrize(
    "text",
    [
        '"' + "[" * 5_000 + '"',  # brackets in a string are no levels
        '["' + "\\\\\\" + '"' + "[" * 5_000 + '"]',
        '"' + "[" * 5_000,
        "]" * 5_000,
        "[" + "[],{}," * 5_000 + "1]",
        "[" + ("[" * 20 + "]" * 20 + ",") * 5_000 + "1]",
    ],
)
def test_brackets_that_open_no_level(text: str) -> None:
    check_nesting(text)


@pytest.mark.parametrize("wide", ["", "[],{}," * 5_000, '"[\\"",' * 5_000])
def test_the_limit_is_exact_in_a_large_text(wide: str) -> None:
    for unit, closing in (("[", "]"), ('{"a":', "}")):
        check_nesting("[" + wide + unit * (JSON_NESTING_MAX - 1) + "1" + closing * (JSON_NESTING_MAX - 1) + "]")
        with pytest.raises(NestedTooDeeplyError):
            check_nesting("[" + wide + unit * JSON_NESTING_MAX + "1" + closing * JSON_NESTING_MAX + "]")


def test_a_text_that_never_ends_is_too_deep() -> None:
    with pytest.raises(NestedTooDeeplyError):
        check_nesting('{"a":' * BEYOND)


@pytest.mark.parametrize(
    ("value", "fit"),
    [
        ("1", BODY_VALUES_MAX),
        ('"a,[{"', BODY_VALUES_MAX),
        ('"\\",\\"\\\\"', BODY_VALUES_MAX),
        ("[]", BODY_VALUES_MAX // 2),
    ],
)
def test_a_body_has_as_many_values_as_the_limit_and_no_more(value: str, fit: int) -> None:
    for many in (fit, fit + 1):
        body = ("[" + ",".join([value] * many) + "]").encode().ljust(2 * BODY_VALUES_MAX + 1)
        assert has_too_many_values(body) == (many > fit)


def test_names_and_texts_of_a_body_are_no_values() -> None:
    members = [f'"name {number}":"{"," * 20}"' for number in range(BODY_VALUES_MAX + 1)]
    assert not has_too_many_values(("{" + ",".join(members[1:]) + "}").encode())
    assert has_too_many_values(("{" + ",".join(members) + "}").encode())
    assert has_too_many_values(("{" + ",".join(members * 3) + "}").encode())
    assert not has_too_many_values(('{"a":"' + '\\"' * 200_000 + '"}').encode())
