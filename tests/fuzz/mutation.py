"""Inputs from the examples of a corpus, by a seeded generator: the same inputs in each run.

Besides small changes there are stretched inputs, a part of an example again and again up to the longest input: they
show what takes more than linear time, which small changes do not.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Final

_SMALL: Final = 4
_NASTY: Final = (
    b"\x00",
    b"\xff",
    b"\x80",
    b"\x7f\xff\xff\xff",
    b"\xff" * 8,
    b"\r\n",
    b'"',
    b"\\",
    b"%00",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"9" * 400,
    b"1e999",
    b"-1",
    b"NaN",
    b"null",
    b"[[[[[[[[",
    b"{",
    "\u0660\u00b2\u2028\U0001f600".encode(),
)


def mutations(corpus: Sequence[bytes], longest: int, seed: int) -> Iterator[bytes]:
    """Changed examples, without end."""
    chosen = random.Random(seed)  # noqa: S311
    while True:
        data = bytearray(chosen.choice(corpus))
        if chosen.random() < 0.02:
            yield _stretched(bytes(data), longest, chosen)
            continue
        for _ in range(chosen.randint(1, _SMALL)):
            _change(data, corpus, chosen)
        yield bytes(data[:longest])


def stretches(corpus: Sequence[bytes], longest: int, seed: int, count: int) -> Iterator[bytes]:
    """Examples whose parts come again and again."""
    chosen = random.Random(seed)  # noqa: S311
    for _ in range(count):
        yield _stretched(chosen.choice(corpus), longest, chosen)


def _change(data: bytearray, corpus: Sequence[bytes], chosen: random.Random) -> None:
    at = chosen.randint(0, len(data))
    end = min(len(data), at + chosen.randint(0, 8))
    match chosen.randrange(7):
        case 0 if at < len(data):
            data[at] ^= 1 << chosen.randrange(8)
        case 1 if at < len(data):
            data[at] = chosen.randrange(256)
        case 2:
            del data[at:end]
        case 3:
            data[at:at] = chosen.choice(_NASTY)
        case 4:
            data[at:end] = chosen.choice(_NASTY)
        case 5:
            other = chosen.choice(corpus)
            begin = chosen.randint(0, len(other))
            data[at:end] = other[begin : begin + chosen.randint(0, 64)]
        case _:
            data[at:at] = data[at:end] * chosen.randint(1, 20)


def _stretched(data: bytes, longest: int, chosen: random.Random) -> bytes:
    begin = chosen.randint(0, max(len(data) - 1, 0))
    end = min(len(data), begin + chosen.choice((1, 1, 2, 4, 8, 16, 64, 256)))
    part = data[begin:end] or b"["
    rest = chosen.choice((data[end:], b""))
    times = max(0, longest - begin - len(rest)) // len(part)
    return (data[:begin] + part * times + rest)[:longest]
