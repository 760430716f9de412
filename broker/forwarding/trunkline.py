"""Sends messages to another Trunkline, each of which it stores once (reference 30.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from broker.clock import Clock
from broker.errors import DomainError
from broker.forwarding.log_reader import Block, LoadedMessage, LogReader
from broker.forwarding.port import UpstreamAnswer, UpstreamError, Upstreams
from broker.forwarding.position import LogPosition
from broker.forwarding.progress import advanced, begun, complete_upto
from broker.forwarding.report import ForwardReport
from broker.forwarding.sent_manifests import SentManifests
from broker.forwarding.wire import (
    PATH,
    Batch,
    BatchAnswer,
    ForwardAsked,
    Greeting,
    SentDevice,
    SentMessage,
    TypesAnswer,
)
from broker.messages.ingest import Ingest
from broker.nesting import check_nesting
from config.limits import FORWARD_POLL_SECONDS, FORWARD_SECONDS
from config.settings import Forward
from storage.forwarding import ForwardRecord, PendingBatch
from storage.keys import Position

#: Before another try where only an operator can help.
_LONG_SECONDS: Final = 60.0
_SKEW_SECONDS: Final = 60.0
_BUSY: Final = (429, 503)
_A = TypeVar("_A")
_decode = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(eq=False)
class TrunklineUpstream:
    _entry: Forward
    _upstreams: Upstreams
    _clock: Clock
    _ingest: Ingest
    _position: LogPosition
    _reader: LogReader
    _manifests: SentManifests
    _report: ForwardReport

    async def greet(self) -> None:
        """Learn which store it is. Raises UpstreamError."""
        store, record = self._reader.store, self._position.record
        pending = "" if record.pending is None else record.pending.id
        known = tuple(one for one in (record.batch, pending) if one)
        greeting = await self.ask(PATH, ForwardAsked(store=store, known=known), Greeting)
        if greeting.store == store:
            raise UpstreamError("The upstream is this store itself, or another copy of it.", seconds=_LONG_SECONDS)
        self._reader.upstream_store = greeting.store
        if record.store is not None and record.store != greeting.store:
            raise UpstreamError(
                f"The upstream is another store than before: {greeting.store}, not {record.store}. If that is right,"
                " give the entry another name.",
                seconds=_LONG_SECONDS,
            )
        self._note_clock(greeting.now)
        if record.store is None:
            self._position.record = replace(record, store=greeting.store)

    async def send(self, block: Block, loaded: Sequence[LoadedMessage]) -> None:
        """Raises UpstreamError, StoreError."""
        record = block.record
        if record.pending is None:
            record = begun(record, block.after, block.upto, of_gap=block.of_gap)
        self._position.record = record
        pending = record.pending
        assert pending is not None, "it was begun"  # noqa: S101 - of `begun`
        await self._position.save()  # a batch that comes again has the same id
        types = {one.device.type.record.unique_name: one.device.type for one in loaded}
        left_out = {name for name in types if self._manifests.leaves_out(name)}
        kept = [one for one in loaded if one.device.type.record.unique_name not in left_out]
        answer = await self.ask(PATH, ForwardAsked(batch=self._batch(record, pending, kept)), BatchAnswer)
        self._note_clock(answer.now)
        if answer.types:
            await self._manifests.bring(answer.types, types, self._bring)
            return  # the batch comes again
        self._take(answer, record, pending, loaded, left_out)

    def _batch(self, record: ForwardRecord, pending: PendingBatch, loaded: Sequence[LoadedMessage]) -> Batch:
        return Batch(
            store=self._reader.store,
            id=pending.id,
            previous=record.batch,
            after=pending.after,
            upto=pending.upto,
            messages=tuple(
                SentMessage(
                    one.message.position,
                    self._ingest.mid(Position(one.message.position)),
                    one.device.id,
                    one.message.ts,
                    one.message.data,
                )
                for one in loaded
            ),
            devices={
                one.device.id: SentDevice(one.device.record.name, one.device.type.record.unique_name, one.path)
                for one in loaded
            },
            complete=complete_upto(record),
        )

    def _take(
        self,
        answer: BatchAnswer,
        record: ForwardRecord,
        pending: PendingBatch,
        loaded: Sequence[LoadedMessage],
        left_out: set[str],
    ) -> None:
        """Advance as far as the batch is stored. Raises UpstreamError."""
        if not pending.after <= answer.upto <= pending.upto:
            raise UpstreamError("The upstream says that it has stored what it was not sent.")
        if answer.upto > pending.after:
            self._position.record = advanced(record, answer.upto)
            passed = [one for one in loaded if one.message.position <= answer.upto]
            left = sum(one.device.type.record.unique_name in left_out for one in passed)
            self._report.count_sent(len(passed) - left)
            self._manifests.succeeded({one.device.type.record.unique_name for one in passed} - left_out, left)
        if answer.problem:
            raise UpstreamError(f"The upstream says: {_plain(answer.problem)}", seconds=answer.seconds)
        if answer.upto == pending.after:
            raise UpstreamError("The upstream has stored nothing of a batch, and does not say why.")
        self._report.works()

    async def _bring(self, asked: ForwardAsked) -> TypesAnswer:
        return await self.ask(PATH, asked, TypesAnswer)

    async def ask(self, path: str, content: object, kind: type[_A]) -> _A:
        """The answer of the upstream. Raises UpstreamError."""
        answer = await self._upstreams.post(
            self._entry, path, msgspec.json.encode(content), seconds=FORWARD_SECONDS + FORWARD_POLL_SECONDS
        )
        if answer.status == 200:
            try:
                check_nesting(answer.body)
                enveloped: _Enveloped[_A] = msgspec.json.decode(answer.body, type=_Enveloped[kind])  # type: ignore[valid-type]
            except (msgspec.DecodeError, UnicodeDecodeError, DomainError) as error:
                raise UpstreamError(
                    "The upstream does not answer as a Trunkline does: is the address right?"
                ) from error
            return enveloped.data
        raise _refusal(answer)

    def _note_clock(self, upstream_ms: int) -> None:
        ahead_seconds = (self._clock.now_ms() - upstream_ms) / 1000
        self._report.clock_ahead_seconds = ahead_seconds
        text = ""
        if abs(ahead_seconds) > _SKEW_SECONDS:
            ahead = "ahead of" if ahead_seconds > 0 else "behind"
            text = f"The clock of this machine is {_spoken(abs(ahead_seconds))} {ahead} that of the upstream."
        self._report.note("clock", text)


class _Enveloped(msgspec.Struct, Generic[_A], frozen=True):
    data: _A


def _refusal(answer: UpstreamAnswer) -> UpstreamError:
    """The error of an answer that is no success."""
    status, seconds = answer.status, 0.0
    after = answer.headers.get("retry-after", "")
    if after.isascii() and after.isdigit():
        seconds = float(after[:9])
    if 300 <= status < 400:
        return UpstreamError(
            f"The upstream sends elsewhere (HTTP status {status}), which is not followed: name that address in `to`.",
            seconds=_LONG_SECONDS,
        )
    try:
        said = _plain(str(_decode(answer.body)["error"]["message"]))
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, RecursionError):
        said = ""
    if status == 401:
        return UpstreamError(
            "The upstream does not know the token of token_file (HTTP status 401): it was renewed, or the edge was"
            " removed. trunkline edge token, at the upstream, makes another one.",
            seconds=_LONG_SECONDS,
        )
    if status == 404:
        return UpstreamError(
            "There is no Trunkline that takes messages at this address (HTTP status 404).", seconds=_LONG_SECONDS
        )
    if status in _BUSY and seconds:
        return UpstreamError(f"The upstream is busy and asks to wait (HTTP status {status}).", seconds=seconds)
    about = f": {said}" if said else ""
    return UpstreamError(f"The upstream answers with HTTP status {status}{about}", seconds=seconds)


def _spoken(seconds: float) -> str:
    for size, unit in ((365 * 86_400, "years"), (86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _plain(text: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in text)[:600]
