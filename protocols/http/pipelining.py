"""Fairness between HTTP connections: who does not wait for its answers waits in line (reference 21.5).

A client that sends its next request after the answer waits as long as the daemon works, so it cannot do more than its
share. One that sends hundreds in a segment can.
"""

from typing import Final

from broker.limits.overhead import Overhead

#: The `Pipeline` of the connection, in ASGI's `state`, which the requests of one connection share.
PIPELINE_KEY: Final = "pipeline"
#: A request costs as much as so many small frames.
REQUEST_FRAMES: Final = 100


class Pipeline:
    """The requests of one connection since the last bytes were read from it."""

    def __init__(self, overhead: Overhead) -> None:
        self._pace = overhead.pace()
        self._requests = 0

    def read(self) -> None:
        """Bytes have been read from the connection."""
        self._requests = 0

    async def wait_turn(self) -> None:
        """A request begins. Wait when it came in one read with the one before it."""
        self._requests += 1
        if self._requests > 1:
            self._pace.spend(REQUEST_FRAMES)
            await self._pace.wait()
