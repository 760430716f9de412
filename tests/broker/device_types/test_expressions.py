"""The expressions of Advanced Manifests: their results, the findings about invalid ones, and the step limit."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.device_types.expressions import (
    MAX_EXPRESSION_CHARACTERS,
    MAX_NESTING,
    MAX_PARENTHESES,
    MAX_STEPS,
    Expression,
    ExpressionFailedError,
    InvalidExpressionError,
)
from config.limits import JSON_NESTING_MAX
from tests.properties import examples
from tests.rows import each_row

PAYLOAD: dict[str, Any] = {"t": "215", "n": 7, "f": 2.5, "on": "1", "flags": 0b1010_0110, "xs": [3, 1, 2], "empty": ""}


@each_row(
    ("expression", "result"),
    [
        ("@.n", 7),
        ("{temperature: divide(to_number(t), `10`), state: on == '1'}", {"temperature": 21.5, "state": True}),
        ("add(n, f)", 9.5),
        ("subtract(n, f)", 4.5),
        ("multiply(n, `3`)", 21),
        ("divide(n, `2`)", 3.5),
        ("modulo(n, `4`)", 3),
        ("round(divide(n, `3`), `2`)", 2.33),
        ("bit(flags, `1`)", True),
        ("bit(flags, `0`)", False),
        ("bits(flags, `4`, `4`)", 0b1010),
        ("bits(`-1`, `60`, `4`)", 0b1111),
        ("parse_int('ff', `16`)", 255),
        ("split('a|b', '|')[1]", "b"),
        ("substring('abcdef', `2`, `3`)", "cde"),
        ("substring('abc', `9`, `3`)", ""),
        ("trim(' a ')", "a"),
        ("lower('ON')", "on"),
        ("choose(n > `5`, 'high', 'low')", "high"),
        ("choose(missing, 'yes', 'no')", "no"),
        ("choose(empty, 'yes', 'no')", "no"),
        ("choose(`0`, 'yes', 'no')", "yes"),
        ("sort(xs)", [1, 2, 3]),
        ("xs[?@ > `1`] | map(&multiply(@, `2`), @)", [6, 4]),
        ("join(',', ['a', 'b'])", "a,b"),
        ("xs[::-1]", [2, 1, 3]),
        ("[xs, xs][]", [3, 1, 2, 3, 1, 2]),
        ("missing.member", None),
    ],
)
def test_result(expression: str, result: object) -> None:
    assert Expression(expression).evaluate(PAYLOAD) == result


@each_row(
    ("expression", "complaint"),
    [
        ("", "Invalid value: Invalid JMESPath expression: cannot be empty."),
        ("a b", "Invalid value: unexpected 'b' at position 2"),
        ("{a: b", "Invalid value: unexpected end at position 5"),
        ("a # b", "Invalid value: unexpected '#' at position 2"),
        ("add(a, nope(b))", "Invalid value: unknown function nope() at position 7"),
        ("add(a)", "Invalid value: add() takes 2 arguments, not 1, at position 0"),
        ("trim(a, b)", "Invalid value: trim() takes 1 arguments, not 2, at position 0"),
        ("(" * 1_000 + "a" + ")" * 1_000, "Invalid value: too deeply nested"),
        ("!" * 2_000 + "a", "Invalid value: too deeply nested"),
        ("|".join("a" * 100), "Invalid value: too deeply nested"),
        ("a" * (MAX_EXPRESSION_CHARACTERS + 1), f"Maximum length {MAX_EXPRESSION_CHARACTERS}"),
        ("__import__('os')", "Invalid value: unknown function __import__() at position 0"),
    ],
)
def test_a_wrong_expression_is_refused_with_the_place(expression: str, complaint: str) -> None:
    with pytest.raises(InvalidExpressionError) as refused:
        Expression(expression)
    assert str(refused.value).startswith(complaint)


@pytest.mark.parametrize(
    ("nested", "limit"),
    [
        (lambda levels: "(" * levels + "a" + ")" * levels, MAX_PARENTHESES),
        (lambda levels: "!" * (levels - 1) + "a", MAX_NESTING),
        (lambda levels: "[" * (levels - 1) + "a" + "]" * (levels - 1), MAX_NESTING),
        (lambda levels: "`" + "[" * levels + "]" * levels + "`", JSON_NESTING_MAX),
    ],
    ids=["parentheses", "operators", "lists", "a literal"],
)
def test_nesting_as_deep_as_the_limit_and_no_deeper(nested: Callable[[int], str], limit: int) -> None:
    Expression(nested(limit))
    with pytest.raises(InvalidExpressionError, match="too deeply nested"):
        Expression(nested(limit + 1))


def test_the_longest_expression_is_accepted() -> None:
    assert Expression("a" * MAX_EXPRESSION_CHARACTERS).evaluate({}) is None


@each_row(
    ("expression", "reason"),
    [
        ("divide(n, `0`)", "division by zero"),
        ("divide(f, `0.0`)", "division by zero"),
        ("modulo(n, `0`)", "division by zero"),
        ("modulo(f, `-0.0`)", "division by zero"),
        ("xs[::0]", "slice step cannot be zero"),
        ("add(t, n)", "In function add(), invalid type"),
        ("multiply(`9223372036854775807`, `9`)", "a number is too large"),
        ("multiply(`1e308`, `1e308`)", "a number is too large"),
        ("bit(f, `0`)", "2.5 is not a whole number"),
        ("bit(n, `64`)", "there are bits 0 to 63"),
        ("bits(n, `0`, `65`)", "there are bits 0 to 63"),
        ("round(f, `16`)", "round() takes 0 to 15 digits"),
        ("substring(t, `-1`, `1`)", "substring() takes no negative numbers"),
        ("parse_int('zz', `16`)", "invalid literal for int()"),
        ("parse_int('1', `99`)", "int() base must be"),
        ("split(t, '')", "empty separator"),
        ("ceil(to_number('inf'))", "cannot convert float infinity"),
    ],
)
def test_a_failure_says_why(expression: str, reason: str) -> None:
    with pytest.raises(ExpressionFailedError) as failed:
        Expression(expression).evaluate(PAYLOAD)
    assert str(failed.value).startswith(reason)


LARGE = {"xs": list(range(1_000)), "text": "x" * 1_000}


@each_row(
    "expression",
    [
        "xs | " + " | ".join(["[@, @][]"] * 30),
        " | ".join(["[@, @]"] * 60),
        " | ".join(["[@, @]"] * 60) + " | to_string(@)",
        " | ".join(["[@, @]"] * 50) + " | [@ == @]",
        " | ".join(["{a: @, b: @}"] * 60),
        "xs[].add(@, @) | sort(@)",
        "map(&map(&add(@, @), `[1,2,3,4,5,6,7,8,9,10]`), xs)",
        "text | " + " | ".join(["join(@, ['', '', '', '', '', '', '', ''])"] * 40),
        "xs | " + " | ".join(["sort_by(@, &add(@, `1`))"] * 40),
        "xs[*].[xs, xs, xs]" + "[]" * 20 + " | length(@)",
        "join(to_string(xs), map(&'', xs))",
        "xs" + "[:]" * 20,
    ],
)
def test_an_expression_of_too_many_steps_fails(expression: str) -> None:
    with pytest.raises(ExpressionFailedError) as failed:
        Expression(expression).evaluate(LARGE)
    assert str(failed.value) == f"it takes more than {MAX_STEPS} steps"


def test_every_evaluation_may_use_all_steps() -> None:
    expression = Expression("map(&add(@, `1`), xs)")
    for _ in range(100):
        assert expression.evaluate({"xs": list(range(100))}) == list(range(1, 101))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=40,
)
expressions = st.recursive(
    st.sampled_from(["a", "b", "@", "`0`", "`2`", "`[1,2]`", "'text'", "*", "[]", "[*]", "[?a]", "[0]", "[::2]"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner, st.sampled_from([" | ", ".", " && ", " || ", " == ", " < "])).map(
            lambda parts: f"{parts[0]}{parts[2]}{parts[1]}"
        ),
        st.tuples(inner, inner).map(lambda parts: f"[{parts[0]}, {parts[1]}]"),
        st.tuples(inner, inner).map(lambda parts: f"{{a: {parts[0]}, b: {parts[1]}}}"),
        st.tuples(inner, st.sampled_from(["length", "to_string", "to_number", "sort", "keys", "trim", "sum"])).map(
            lambda parts: f"{parts[1]}({parts[0]})"
        ),
        st.tuples(inner, inner, st.sampled_from(["add", "multiply", "divide", "bit", "split", "join", "contains"])).map(
            lambda parts: f"{parts[2]}({parts[0]}, {parts[1]})"
        ),
        inner.map(lambda part: f"map(&{part}, @)"),
    ),
    max_leaves=12,
)


def size(value: object) -> int:
    """The size that an encoder would write."""
    if isinstance(value, list):
        return len(value) + sum(map(size, value))
    if isinstance(value, dict):
        return len(value) + sum(map(size, value.values()))
    return 0


@settings(max_examples=examples(300))
@given(text=expressions | st.text(max_size=60), value=json_values)
def test_any_expression_on_any_payload_ends_in_a_small_result_or_is_refused(text: str, value: object) -> None:
    with suppress(InvalidExpressionError, ExpressionFailedError):
        assert size(Expression(text).evaluate(value)) <= MAX_STEPS
