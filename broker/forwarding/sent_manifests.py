"""Brings the Manifests of device types to an upstream that does not know these (reference 30.3)."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec
import structlog
import trio

from broker.device_types.catalog import DeviceType
from broker.forwarding.port import UpstreamError
from broker.forwarding.report import ForwardReport
from broker.forwarding.wire import ForwardAsked, SentType, TypesAnswer
from config.limits import FORWARD_BODY_BYTES
from storage.database import Database
from storage.transaction import Transaction

#: After so long a type whose Manifest is too large is tried again: somebody may have made it at the upstream.
_LEFT_OUT_SECONDS: Final = 600.0
_NOTE: Final = "manifests"
_WAIT_SECONDS: Final = 60.0
_log = structlog.get_logger(__name__)


class SentManifests:
    """Of one upstream. `left_out` are the types whose Manifest is too large for a request: what comes of their devices
    is not sent, and does not stop the rest."""

    def __init__(self, name: str, database: Database, report: ForwardReport, store: str) -> None:
        self._name, self._database, self._report, self._store = name, database, report, store
        self._left_out: dict[str, float] = {}
        self._brought = frozenset[str]()
        self._messages = 0

    def leaves_out(self, type_name: str) -> bool:
        return self._left_out.get(type_name, float("-inf")) > trio.current_time()

    def succeeded(self, types: Collection[str], left_out: int) -> None:
        """The upstream has taken a batch with these types; `left_out`: messages of other types that it was to have."""
        self._brought = frozenset()
        known = self._left_out.keys() & types
        for name in known:  # somebody has made it there
            del self._left_out[name]
        self._messages += left_out
        if left_out or known:
            self._say()

    async def bring(
        self,
        names: Sequence[str],
        types: Mapping[str, DeviceType],
        ask: Callable[[ForwardAsked], Awaitable[TypesAnswer]],
    ) -> None:
        """Send what the upstream has asked for: types of a batch. Raises UpstreamError, StoreError."""
        if not types.keys() >= set(names):
            raise UpstreamError("The upstream asks for device types that are not in the batch.", seconds=_WAIT_SECONDS)
        if self._brought.issuperset(names):
            self._brought = frozenset()
            raise UpstreamError("The upstream asks again for device types that it was told of.", seconds=_WAIT_SECONDS)
        requests, too_large = packed(self._store, await self._read({name: types[name] for name in names}))
        for name, size in too_large.items():
            self._leave_out(name, size)
        for request in requests:
            answer = await ask(request)
            if answer.problems:
                problem = next(iter(answer.problems.values()))
                raise UpstreamError(f"The upstream says: {problem}", seconds=_WAIT_SECONDS)
        self._brought |= frozenset(names) - too_large.keys()

    def _leave_out(self, name: str, size: int) -> None:
        if name not in self._left_out:
            _log.warning(
                "forward_manifest_too_large", forward=self._name, device_type=name, bytes=size, most=FORWARD_BODY_BYTES
            )
        self._left_out[name] = trio.current_time() + _LEFT_OUT_SECONDS
        self._say()

    def _say(self) -> None:
        names = ", ".join(sorted(self._left_out))
        text = (
            f"The Manifest of {names} is too large to be sent (more than {FORWARD_BODY_BYTES // 1024} KiB):"
            f" {self._messages:,} messages of its devices were left out. Upload it at the upstream: after 10 minutes"
            " new messages are sent."
        )
        self._report.note(_NOTE, text if names else "", is_logged=False)

    async def _read(self, types: Mapping[str, DeviceType]) -> dict[str, SentType]:
        """Raises UpstreamError, StoreError."""

        def read(tx: Transaction) -> dict[str, SentType]:
            found = dict[str, SentType]()
            for name, type_ in types.items():
                newest = next((one for one in reversed(tx.device_types.manifests(type_.key)) if one.approved), None)
                if newest is not None:
                    found[name] = SentType(type_.record.name, newest.document)
            return found

        found = await self._database.read(read)
        if (lacking := next(iter(types.keys() - found.keys()), None)) is not None:
            raise UpstreamError(
                f"The upstream asks for the device type {lacking}, which has no approved Manifest here."
            )
        return found


def packed(store: str, types: Mapping[str, SentType]) -> tuple[list[ForwardAsked], dict[str, int]]:
    """Requests with these types, each within the bound of a body; and the size of each type that is too large alone."""
    room = FORWARD_BODY_BYTES - len(msgspec.json.encode(ForwardAsked(store=store, types={})))
    parts, too_large, left = list[dict[str, SentType]](), dict[str, int](), 0
    for name, one in types.items():
        size = len(msgspec.json.encode({name: one}))  # its braces count for the comma before the next one
        if size > room:
            too_large[name] = size
            continue
        if size > left:
            parts.append({})
            left = room
        parts[-1][name] = one
        left -= size
    return [ForwardAsked(store=store, types=part) for part in parts], too_large
