"""The columns of messages are what each message has by itself."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.messages import columns as module
from broker.messages.columns import Columns, shape_of
from broker.messages.decoding import decode

NAMES = st.sampled_from(["a", "temp.c", "f0", "class", "é", "__init__"])
VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.just({"inner": 1}),
)
MESSAGES = st.lists(st.dictionaries(NAMES, VALUES, min_size=1), min_size=1, max_size=6)
#: Often all messages have the same fields.
ALIKE = st.lists(NAMES, min_size=1, unique=True).flatmap(
    lambda names: st.lists(st.fixed_dictionaries(dict.fromkeys(names, VALUES)), min_size=1, max_size=6)
)


def columns_of(texts: Sequence[str]) -> Columns | None:
    """The columns of messages that all have the shape of the first one."""
    shape = shape_of(texts[0])
    return None if shape is None else shape.columns(texts)


@given(MESSAGES | ALIKE)
def test_columns_have_the_values_of_each_message_with_their_types(messages: list[dict[str, Any]]) -> None:
    texts = [json.dumps(message) for message in messages]
    columns = columns_of(texts)
    if columns is None:
        return
    numbers = dict(columns.numbers())
    for index, text in enumerate(texts):
        expected = decode(text)
        assert kinds({name: column[index] for name, column in numbers.items()}) == kinds(
            {name: value for name, value in expected.items() if type(value) in (int, float)}
        )
        assert {*numbers, *columns.shape.others} == expected.keys()


def kinds(fields: Mapping[str, Any]) -> dict[str, tuple[type, Any]]:
    """`1`, `1.0` and `true` are equal in Python."""
    return {name: (type(value), value) for name, value in fields.items()}


@pytest.mark.parametrize(
    ("texts", "is_taken"),
    [
        (['{"a":1,"b":"x"}', '{"b":"y","a":2.5}'], True),
        (['{"a":true}', '{"a":false}'], True),
        (['{"a":[1,"x"]}', '{"a":[]}'], True),
        (['{"a":true}', '{"a":"on"}'], True),
        (['{"a":1}', '{"b":1}'], False),
        (['{"a":1,"b":2}', '{"a":1}'], False),
        (['{"a":1}', '{"a":1,"b":2}'], False),
        (['{"a":1}', '{"a":"1"}'], False),
        (['{"a":1}', '{"a":true}'], False),
        (['{"a":"x"}', '{"a":{"b":1}}'], False),
        (['{"a":{"b":1}}', '{"a":{"b":2}}'], False),
        (["{}", "{}"], False),
    ],
)
def test_messages_with_the_same_fields_of_the_same_kinds_have_columns(texts: list[str], is_taken: bool) -> None:
    assert (columns_of(texts) is not None) is is_taken


def test_messages_with_very_many_fields_have_none() -> None:
    for number, is_taken in ((32, True), (33, False)):
        text = json.dumps({f"field{index}": index for index in range(number)})
        assert (columns_of([text, text]) is not None) is is_taken


def test_shapes_beyond_a_number_have_none_and_take_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a fleet with more shapes would compile a decoder for nearly every batch."""
    monkeypatch.setattr(module, "_shapes", {})
    monkeypatch.setattr(module, "_SHAPES", 2)
    taken = [columns_of([f'{{"shape{shape}":1}}'] * 2) is not None for shape in (1, 2, 3, 1, 2, 3)]
    assert taken == [True, True, False] * 2
    assert len(module._shapes) == 2
