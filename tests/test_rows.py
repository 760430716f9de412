"""each_row runs a test with every row of its tables, and says which rows failed."""

import inspect
from itertools import product

import pytest

from tests.rows import each_row


async def test_every_row_is_run_in_its_order() -> None:
    seen: list[tuple[int, str, int]] = []

    @each_row("number", [1, pytest.param(2, id="two")])
    @each_row(("text", "length"), [("", 0), pytest.param("a", 1)])
    async def test(world: list[tuple[int, str, int]], number: int, text: str, length: int) -> None:
        world.append((number, text, length))

    assert list(inspect.signature(test).parameters) == ["world"]  # what pytest takes for fixtures
    await test(world=seen)
    assert seen == [(number, *row) for number, row in product((1, 2), (("", 0), ("a", 1)))]


async def test_a_method_has_rows_as_a_function_has() -> None:
    class Tests:
        def __init__(self) -> None:
            self.seen: list[object] = []

        @each_row("value", [(1, 2), None])
        async def test(self, value: object) -> None:
            self.seen.append(value)

    tests = Tests()
    await tests.test()
    assert tests.seen == [(1, 2), None]


async def test_a_failure_names_its_row_and_the_rows_behind_it_are_run() -> None:
    seen: list[int] = []

    @each_row("number", [1, 2, 3])
    async def test(number: int) -> None:
        seen.append(number)
        assert number != 2

    with pytest.raises(AssertionError) as failed:
        await test()
    assert failed.value.__notes__ == ["in the row {'number': 2}"]
    assert seen == [1, 2, 3]


def test_a_function_that_is_no_coroutine_is_run_with_every_row() -> None:
    seen: list[int] = []

    @each_row("number", [1, 2, 3], ids=["one", "two", "three"])
    def test(number: int) -> None:
        seen.append(number)
        assert number != 2

    with pytest.raises(AssertionError) as failed:
        test()
    assert failed.value.__notes__ == ["in the row two {'number': 2}"]
    assert seen == [1, 2, 3]


def test_every_row_that_fails_is_reported() -> None:
    @each_row("number", [1, 2, 3])
    def test(number: int) -> None:
        if number == 3:
            pytest.fail("three")
        assert number != 1

    with pytest.raises(BaseExceptionGroup, match="2 rows failed") as failed:
        test()
    assert [error.__notes__ for error in failed.value.exceptions] == [
        ["in the row {'number': 1}"],
        ["in the row {'number': 3}"],
    ]


def test_a_row_that_is_skipped_hides_no_failure() -> None:
    @each_row("number", [1, 2])
    def test(number: int) -> None:
        if number == 2:
            pytest.skip("not here")
        assert number != 1

    with pytest.raises(AssertionError):
        test()


def test_a_row_of_another_length_and_a_table_without_rows_are_mistakes() -> None:
    with pytest.raises(ValueError, match="zip"):
        each_row(("one", "two"), [(1, 2), (1,)])
    with pytest.raises(AssertionError, match="checks nothing"):
        each_row("one", [])


def test_marks_below_the_table_are_kept() -> None:
    @each_row("number", [1])
    @pytest.mark.processes
    async def test(number: int) -> None:
        """Nothing."""

    assert [mark.name for mark in test.pytestmark] == ["processes"]  # type: ignore[attr-defined]
