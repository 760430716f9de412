"""Which numbers of a JSON text are out of range, and what their path is (reference 1.3)."""

import pytest

from broker.numbers import number_out_of_range
from tests.rows import each_row


@each_row(
    ("text", "path"),
    [
        ("9223372036854775807", None),
        ("-9223372036854775808", None),
        ("9223372036854775808", ""),
        ("-9223372036854775809", ""),
        ("9" * 5_000, ""),
        ("1e400", ""),
        ("-1.5E+400", ""),
        ("9" * 400 + ".5", ""),
        ("1e308", None),
        ("1.7976931348623157e308", None),
        ("1e-400", None),
        ("0." + "3" * 400, None),
        ("123456789012345678901e1", None),
        ('{"a":1,"b":{"c":[0,[1e999]]}}', "b.c.1.0"),
        (' \n[{"a":"1e999"},{"a":1e999}]', "1.a"),
        ('{"a":"' + "1" * 32 + '","b":"7e4001"}', None),
        ('{"a":"x\\"1e999","b":2}', None),
        ('{"a":"\\\\","b":1e999}', "b"),
        ('{"a":1e999', None),  # the decoder says what is wrong with it
        ("", None),
    ],
)
def test_numbers_out_of_range(text: str, path: str | None) -> None:
    assert number_out_of_range(text.encode()) == path


@pytest.mark.parametrize("text", [b'{"\xeb":1e999}', b"[" * 60_000 + b"1e999" + b"]" * 60_000])
def test_what_the_decoder_refuses_has_none(text: bytes) -> None:
    assert number_out_of_range(text) is None


def test_the_path_of_a_number_is_looked_for_once() -> None:
    """One search for each level of a large body would block everybody else."""
    deep = b'{"a":' * 800 + b'{"p":"' + b"1" * 100_000 + b'","x":1e400}' + b"}" * 800
    looked_at = 0

    class Counted(bytes):
        def translate(self, *given: bytes) -> bytes:  # type: ignore[override]
            nonlocal looked_at
            looked_at += len(self)
            return super().translate(*given)

    assert number_out_of_range(Counted(deep)) == "a"
    small = b'{"a":' * 800 + b'{"x":1e400}' + b"}" * 800
    assert number_out_of_range(small) == ".".join("a" * 33)
    assert looked_at <= 4 * len(deep)
