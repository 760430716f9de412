"""Places for work that runs at once, given out fairly by key: of a user, an address or a host.

A key that asks for much waits behind itself. When a place becomes free, it goes to the key that holds the fewest; of
several, to the one that has waited longest since its last place. The work of one key runs in the order of arrival.

    places = FairPlaces(8, of_one=2)
    async with places.of(owner):
        ...
"""

import math
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import trio


class _Waiting:
    __slots__ = ("is_patient", "since", "woken")

    def __init__(self) -> None:
        self.woken = trio.Event()
        self.since: float | None = None  # when it got its place
        self.is_patient = True


class FairPlaces:
    def __init__(
        self, in_all: int, *, of_one: int | None = None, at_first: int | None = None, patience: float = math.inf
    ) -> None:
        """
        Args:
            in_all: number of calls that run at once.
            of_one: number of calls of one key, also while no other key waits. The key None has no such bound.
            at_first: number of calls at once that have not run for long. A key that holds no place still gets one at
                once, while fewer keys than this number hold one.
            patience: seconds after which a waiting caller gets any free place.
        """
        self._in_all = in_all
        self._of_one = in_all if of_one is None else of_one
        self._at_first = in_all if at_first is None else at_first
        self._patience = patience
        self._taken = 0
        self._begun: list[float] = []  # when the places were given, if that matters
        self._held: Counter[Hashable] = Counter()
        self._lines: OrderedDict[Hashable, deque[_Waiting]] = OrderedDict()  # the key that got a place last is the last

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def waiting(self) -> int:
        return sum(map(len, self._lines.values()))

    def held_by(self, key: Hashable) -> int:
        return self._held[key]

    def waiting_of(self, key: Hashable) -> int:
        """The number of waiting calls of a key. A caller with a bound on it refuses before waiting."""
        return len(self._lines.get(key, ()))

    @asynccontextmanager
    async def of(self, key: Hashable) -> AsyncIterator[None]:
        """A place of the key while the block lasts."""
        since = await self.take(key)
        try:
            yield
        finally:
            self.give_back(key, since)

    async def take(self, key: Hashable) -> float:
        """Take a place as `of` does, where a context manager costs too much: `give_back` gets what this answers.

        A cancelled caller holds no place.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if key not in self._lines and self._is_free_for(key, is_patient=True):
            return self._give(key)
        one = _Waiting()
        self._lines.setdefault(key, deque()).append(one)
        try:
            if self._patience < math.inf:
                with trio.move_on_after(self._patience):
                    await one.woken.wait()
                if one.since is None:
                    one.is_patient = False
                    self._serve()
            if one.since is None:
                await one.woken.wait()
        except trio.Cancelled:
            if one.since is not None:
                self.give_back(key, one.since)
            else:
                self._leave_line(key, one)
            raise
        assert one.since is not None  # noqa: S101 - a woken task has a place
        return one.since

    def give_back(self, key: Hashable, since: float) -> None:
        self._taken -= 1
        if self._at_first < self._in_all:
            self._begun.remove(since)
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
        if self._lines:
            if key in self._lines:
                self._lines.move_to_end(key)
            self._serve()

    def _give(self, key: Hashable) -> float:
        self._taken += 1
        self._held[key] += 1
        since = 0.0
        if self._at_first < self._in_all:
            self._begun.append(since := trio.current_time())
        return since

    def _is_free_for(self, key: Hashable, *, is_patient: bool) -> bool:
        held = self._held.get(key, 0)
        if self._taken >= self._in_all or (held >= self._of_one and key is not None):
            return False
        if not is_patient or self._taken < self._at_first or (not held and len(self._held) < self._at_first):
            return True
        return sum(map((trio.current_time() - self._patience).__lt__, self._begun)) < self._at_first

    def _serve(self) -> None:
        """Give the free places to waiting callers."""
        while self._taken < self._in_all and (key := self._next()) is not None:
            line = self._lines.pop(key[0])
            one = line.popleft()
            if line:
                self._lines[key[0]] = line
            one.since = self._give(key[0])
            one.woken.set()

    def _next(self) -> tuple[Hashable] | None:
        """The key whose turn it is, in a tuple, because None is one."""
        found, fewest = None, math.inf
        for key, line in self._lines.items():
            held = self._held.get(key, 0)
            if held < fewest and self._is_free_for(key, is_patient=line[0].is_patient):
                found, fewest = (key,), held
                if not held:
                    break
        return found

    def _leave_line(self, key: Hashable, one: _Waiting) -> None:
        line = self._lines[key]
        line.remove(one)
        if not line:
            del self._lines[key]
        else:
            self._serve()  # the next one may be less patient
