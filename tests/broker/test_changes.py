"""A read that a change has overtaken is repeated."""

from broker.changes import Changes


async def test_a_read_during_which_nothing_changed_is_made_once() -> None:
    reads: list[str] = []

    async def read() -> str:
        reads.append("read")
        return "found"

    changes = Changes()
    changes.note()  # before the read: the read sees that change
    assert await changes.settled(read) == "found"
    assert reads == ["read"]


async def test_a_read_is_repeated_until_nothing_changed_meanwhile() -> None:
    changes, reads = Changes(), 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        if reads < 3:
            changes.note()
        return reads

    assert await changes.settled(read) == 3
