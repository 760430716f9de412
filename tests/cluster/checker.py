"""The rules R1 to R9 and R11 of several nodes as predicates over what clients saw and what the database has.

A history is the events of clients, and the faults that were made meanwhile. Each predicate yields what contradicts
its rule. tests/cluster/test_checker.py has a history for each that it must find, and mutants of the product.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

#: R11: how long a paused node holds up the others at most.
HELD_UP_SECONDS: Final = 3.0
#: What a busy machine may add to a time.
BUSY_SECONDS: Final = 3.0
#: One client alone makes changes: so long it waits for a node that stands still, before it asks another one.
CHANGE_SECONDS: Final = 2.0
#: What happens so long after a fault may be due to it: the answer of a callback was lost, and it is asked again.
DISTURBED_SECONDS: Final = 15.0
#: What a node acknowledges so soon after it is cut off was under way.
UNDER_WAY_SECONDS: Final = 0.5
#: Of the rule with a duration; and how much a time may differ that makes it due.
DURATION_SECONDS: Final = 1.0
UNSURE_SECONDS: Final = 0.2


class Event(NamedTuple):
    """What a client did or saw at a time of `time.monotonic`.

    `what`: `connected`, `sent`, `acknowledged`, `refused`, `closed`; `received` by a live feed, `notified` by a
    callback, whose notification `text` is; `read` or `missing` by REST on a node after the acknowledgement; `changed`:
    a work, which is no message, has ended; `delivered`: an Action has come over MQTT; `used`: a request is about to be
    sent with the device token `text`; `revoked`: that has ended; `shown`: a read with it was answered. `text` of
    `refused` is why.
    `link` is the number of the connection, and grows with each one of a device.
    """

    at: float
    what: str
    device: int
    number: int
    node: str
    link: int = 0
    text: str = ""


class Span(NamedTuple):
    """A fault. `nodes`: those that it met; `kind`: `cut` from the database, `pause`, or another one."""

    name: str
    kind: str
    nodes: frozenset[str]
    begun: float
    ended: float


class StoredRow(NamedTuple):
    position: int
    device: int
    number: int
    ts: int = 0


class Epoch(NamedTuple):
    """A lease as somebody has seen it in the database at a time."""

    name: str
    epoch: int
    instance: str
    at: float = 0.0


class Count(NamedTuple):
    """How many messages of a device a node has counted, and how many were stored before and after it was asked."""

    node: str
    before: int
    found: int
    after: int


class Fold(NamedTuple):
    """Of all messages of a device: the number, and least, highest and sum of what they say; and the latest value."""

    number: int
    least: int
    highest: int
    sum: int
    latest: int


class Period(NamedTuple):
    """Messages of a device between which the condition of a rule with a duration held, and their times in ms."""

    number: int
    begun: int
    ended: int


@dataclass
class Tables:
    """What the database has in the end. `rows`: in the order of the positions; `effects`: of the rule, for each number
    of its source; `facts`: their numbers; `heard`: of each node, the number of the last fact that it knows; `folds`:
    of each node, of one device, and `recount`: the same from the log; `periods` of the rule with a duration, and `due`:
    its effects; `tasks`: the states that each task went through; `actions`: to devices with a session, by device."""

    rows: list[StoredRow] = field(default_factory=list)
    effects: list[int] = field(default_factory=list)
    facts: list[int] = field(default_factory=list)
    heard: dict[str, int] = field(default_factory=dict)
    folds: dict[str, Fold] = field(default_factory=dict)
    recount: Fold | None = None
    periods: list[Period] = field(default_factory=list)
    due: list[int] = field(default_factory=list)
    tasks: dict[int, list[str]] = field(default_factory=dict)
    actions: dict[int, list[int]] = field(default_factory=dict)


@dataclass
class Record:
    """`rule`: the device whose messages trigger the rule, each once, from the first number on; `called`: the devices
    whose messages the callback gets, from the first number on; `once`: the devices to which each Action comes once
    (QoS 2), of those with a session. `patience`: of the nodes, in seconds."""

    events: list[Event] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    once: set[int] = field(default_factory=set)
    rule: tuple[int, int] | None = None
    called: dict[int, int] = field(default_factory=dict)
    patience: float = 0.0

    def of(self, *what: str) -> list[Event]:
        return [one for one in self.events if one.what in what]


Predicate = Iterator[str]


def _since(record: Record, at: float) -> str:
    """The last fault that had begun at this time."""
    begun = [span for span in record.spans if span.begun <= at]
    if not begun:
        return ""
    last = max(begun, key=lambda span: span.begun)
    nodes = f" of {', '.join(sorted(last.nodes))}" if last.nodes else ""
    return f", {at - last.begun:.2f} s after the beginning of: {last.name}{nodes}"


def _positions(record: Record, tables: Tables) -> Predicate:
    """R1: a reader that has seen a position never sees a new row before it, and leaves none out."""
    positions = [row.position for row in tables.rows]
    if len(set(positions)) < len(positions):
        yield "R1: a position is given twice"
    place = {(row.device, row.number): at for at, row in enumerate(tables.rows)}
    feeds: dict[int, list[Event]] = defaultdict(list)
    for one in record.of("received"):
        feeds[one.link].append(one)
    for heard in feeds.values():
        places = [place.get((one.device, one.number)) for one in heard]
        if None in places:
            yield f"R1: a feed of {heard[0].node} has a message that is not stored"
            continue
        for (before, after), one in zip(pairwise(places), heard[1:], strict=True):
            if after != before + 1:  # type: ignore[operator] # None is refused above
                yield (
                    f"R1: a feed of {one.node} has device {one.device}, number {one.number} at place {after} of the"
                    f" log, after {before}{_since(record, one.at)}"
                )
                break


def _stored_once(record: Record, tables: Tables) -> Predicate:
    """R2: an acknowledged message is in the store, once."""
    found = Counter((row.device, row.number) for row in tables.rows)
    for one in record.of("acknowledged"):
        if not found[one.device, one.number]:
            yield f"R2: {one.node} has acknowledged number {one.number} of device {one.device}, which is not stored"
    for (device, number), times in found.items():
        if times > 1:
            yield f"R2: number {number} of device {device} is stored {times} times"
    yield from _sessions(record, tables)


def _sessions(record: Record, tables: Tables) -> Predicate:
    """An Action comes to an MQTT session wherever its device connects: with QoS 2 once, with QoS 1 twice only when it
    was under way at a fault."""
    for device, stored in tables.actions.items():
        came: dict[int, list[float]] = defaultdict(list)
        for one in record.of("delivered"):
            if one.device == device:
                came[one.number].append(one.at)
        if missed := [number for number in stored if number not in came]:
            yield f"R2: {len(missed)} Actions to device {device} did not come to its session, the first is {missed[0]}"
        for number, times in came.items():
            again = len(times) > 1 and (device in record.once or not _is_disturbed(record, times[0], times[-1]))
            if again or number not in stored:
                yield f"R2: Action {number} came {len(times)} times to the session of device {device}"


def _is_disturbed(record: Record, begun: float, ended: float) -> bool:
    """Whether there was a fault, or a lease moved, between two times, or just before them."""
    begun -= DISTURBED_SECONDS
    return any(span.begun <= ended and span.ended >= begun for span in record.spans) or any(
        begun <= one.at <= ended + 1 for one in record.epochs
    )


def _one_connection(record: Record, tables: Tables) -> Predicate:
    """R3: no row of a former connection is behind one of a later connection."""
    link = {(one.device, one.number): one for one in record.of("sent") if one.link}
    latest: dict[int, Event] = {}
    for row in tables.rows:
        if (one := link.get((row.device, row.number))) is None:
            continue
        if (former := latest.get(row.device)) is not None and one.link < former.link:
            yield (
                f"R3: number {one.number} of device {one.device}, which {one.node} took, is behind number"
                f" {former.number} of a later connection, to {former.node}{_since(record, one.at)}"
            )
        else:
            latest[row.device] = one


def _one_holder(record: Record, _tables: Tables) -> Predicate:
    """R4: an epoch of a lease has one holder, and epochs grow."""
    holder: dict[tuple[str, int], str] = {}
    latest: dict[str, int] = {}
    for one in record.epochs:
        if holder.setdefault((one.name, one.epoch), one.instance) != one.instance:
            yield f"R4: the lease {one.name} has two holders of epoch {one.epoch}"
        if one.epoch < latest.get(one.name, 0):
            yield f"R4: the lease {one.name} went back to epoch {one.epoch}"
        latest[one.name] = one.epoch


def _facts(_record: Record, tables: Tables) -> Predicate:
    """R5: each node has heard every fact. (Their order: tests/cluster/history.py, which sees it.)"""
    if tables.facts and tables.facts != list(range(tables.facts[0], tables.facts[0] + len(tables.facts))):
        yield "R5: the numbers of the facts have gaps"
    for node, heard in tables.heard.items():
        if tables.facts and heard < tables.facts[-1]:
            yield f"R5: {node} has heard the facts up to {heard}, and the last one is {tables.facts[-1]}"


def _revoked(record: Record, _tables: Tables) -> Predicate:
    """R6: what is sent with a revoked token is not stored, and soon nothing is read with it. A node that is cut off
    hears nothing of it, and refuses after the patience."""
    revoked = {(one.device, one.text): one.at for one in record.of("revoked")}
    used = {(one.device, one.number): one for one in record.of("used")}
    for one in record.of("acknowledged"):
        use = used.get((one.device, one.number))
        if use is not None and (at := revoked.get((use.device, use.text))) is not None and use.at > at:
            yield f"R6: {one.node} has stored what was sent {use.at - at:.3f} s after its token was revoked"
    for one in record.of("shown"):
        later = one.at - revoked.get((one.device, one.text), one.at)
        is_cut_off = any(span.kind == "cut" and span.begun < one.at < span.ended + 1 for span in record.spans)
        if later > 1 + BUSY_SECONDS + (record.patience if is_cut_off else 0):
            yield f"R6: {one.node} has answered a read {later:.3f} s after its token was revoked"


def due_effects(rows: Sequence[StoredRow], device: int, first: int) -> Counter[int]:
    """The effects of a rule that looks at a device from this number on: each message leads to one, with the value that
    is the newest by its time. A message that a node stores late, after others have stored newer ones, repeats theirs.
    """
    due: Counter[int] = Counter()
    newest: StoredRow | None = None
    for row in rows:
        if row.device == device:
            newest = row if newest is None or row.ts >= newest.ts else newest
            due[newest.number] += row.number >= first and newest.number >= first
    return +due


def _effects(record: Record, tables: Tables) -> Predicate:
    """R7: a rule's effect is in the store once for each message; a callback gets each at least once, with one id."""
    if record.rule is not None:
        device, first = record.rule
        due = due_effects(tables.rows, device, first)
        done = Counter(number for number in tables.effects if number >= first)
        if missed := due - done:
            yield f"R7: the rule has left out {missed.total()} messages, the first is {min(missed)}"
        if twice := done - due:
            yield f"R7: the rule has {twice.total()} effects too many, the first for {min(twice)}"
    ids: dict[tuple[int, int], set[str]] = defaultdict(set)
    for one in record.of("notified"):
        ids[one.device, one.number].add(one.text)
    for row in tables.rows:
        if row.number >= record.called.get(row.device, row.number + 1) and not ids[row.device, row.number]:
            yield f"R7: the callback did not get number {row.number} of device {row.device}"
    for (device, number), of_message in ids.items():
        if len(of_message) > 1:
            yield f"R7: number {number} of device {device} is in {len(of_message)} notifications"
    yield from _told(record, tables)
    yield from _due(record, tables)


def _told(record: Record, tables: Tables) -> Predicate:
    """The callback got the messages of a device in the order of the log, and each once, but for faults."""
    times: dict[tuple[int, int], list[float]] = defaultdict(list)
    for one in record.of("notified"):
        times[one.device, one.number].append(one.at)
    for (device, number), all_ in times.items():
        if len(all_) > 1 and not _is_disturbed(record, all_[0], all_[-1]):
            yield f"R7: the callback got number {number} of device {device} {len(all_)} times, without a fault"
    latest: dict[int, tuple[float, int]] = {}
    for row in tables.rows:
        if not (all_ := times.get((row.device, row.number), [])):
            continue
        before, number = latest.get(row.device, (0.0, 0))
        if all_[0] < before and not _is_disturbed(record, all_[0], before):
            when = _since(record, before)
            yield f"R7: the callback got number {row.number} of device {row.device} before {number}{when}"
        latest[row.device] = max(latest.get(row.device, (0.0, 0)), (all_[0], row.number))


def _due(record: Record, tables: Tables) -> Predicate:
    """A duration that is over has its effect once, one that ended early has none; and a task is done once.

    The message that ends a duration early may be stored after its end, by a node that was away."""
    done = Counter(tables.due)
    sent, stored = dict[int, float](), dict[int, float]()
    for event in reversed(record.of("sent", "acknowledged")):  # the first ones
        (sent if event.what == "sent" else stored)[event.number] = event.at
    for one in tables.periods:
        lasted = (one.ended - one.begun) / 1000
        is_due = lasted > DURATION_SECONDS
        after = -one.number - 1
        late = stored.get(after, math.inf) - sent[after] if after in sent else 0.0
        if done[one.number] == 1 and not is_due and lasted + late > DURATION_SECONDS:
            continue
        if done[one.number] != is_due and abs(lasted - DURATION_SECONDS) > UNSURE_SECONDS:
            yield f"R7: a duration that lasted {lasted:.2f} s (number {one.number}) has {done[one.number]} effects"
    for number, states in tables.tasks.items():
        if states != ["REQUESTED", "QUEUED", "PROCESSING", "SUCCEEDED"]:
            yield f"R7: task {number} went through {', '.join(states) or 'nothing'}"


def _cut_off(record: Record, _tables: Tables) -> Predicate:
    """R8: a node that cannot reach the database acknowledges nothing, and says why when the patience is over."""
    for span in record.spans:
        if span.kind != "cut":
            continue
        within = [one for one in record.events if one.node in span.nodes and span.begun < one.at < span.ended]
        for one in within:
            if one.what == "acknowledged" and one.at > span.begun + UNDER_WAY_SECONDS:
                yield f"R8: {one.node} acknowledged while it was cut off from the database ({span.name})"
        late = [one for one in within if one.what == "refused" and one.at > span.begun + record.patience + BUSY_SECONDS]
        if unexplained := [one for one in late if one.text not in {"", "503", "5.03", "closed", "nobody listens"}]:
            yield f"R8: {unexplained[0].node} answered {unexplained[0].text} while it was cut off"


def _read_elsewhere(record: Record, tables: Tables) -> Predicate:
    """R9: what one node acknowledged, the same client reads on any node; and each counts what is in the log."""
    for one in record.of("missing"):
        yield f"R9: {one.node} does not show number {one.number} of device {one.device}, which was acknowledged before"
    for count in record.counts:
        if not count.before <= count.found <= count.after:
            yield f"R9: {count.node} counts {count.found} messages of {count.before} to {count.after}"
    for node, fold in tables.folds.items():
        if fold != tables.recount:
            yield f"R9: {node} has counted {fold}, and the log has {tables.recount}"


def _held_up(record: Record, _tables: Tables) -> Predicate:
    """R11: a paused node holds up the others for three seconds at most."""
    for span in record.spans:
        if span.kind != "pause":
            continue
        for what, waited in (("acknowledged", 0.0), ("changed", CHANGE_SECONDS)):
            if not record.of(what):
                continue
            times = [
                one.at for one in record.of(what) if one.node not in span.nodes and span.begun <= one.at <= span.ended
            ]
            gaps = [after - before for before, after in pairwise([span.begun, *sorted(times), span.ended])]
            if max(gaps) > HELD_UP_SECONDS + BUSY_SECONDS + waited:
                yield f"R11: nothing was {what} for {max(gaps):.1f} s by the others ({span.name})"


PREDICATES: Final = {
    "R1": _positions,
    "R2": _stored_once,
    "R3": _one_connection,
    "R4": _one_holder,
    "R5": _facts,
    "R6": _revoked,
    "R7": _effects,
    "R8": _cut_off,
    "R9": _read_elsewhere,
    "R11": _held_up,
}


def problems(record: Record, tables: Tables) -> list[str]:
    """The rules that do not hold, each with the first case of each kind."""
    return [one for predicate in PREDICATES.values() for one in predicate(record, tables)]


def lost_and_twice(record: Record, tables: Tables, spans: Sequence[Span]) -> dict[str, tuple[int, int, int]]:
    """For each fault by its name: how many were acknowledged from its beginning to that of the next one, how many of
    them are lost, and how many are stored twice."""
    found = Counter((row.device, row.number) for row in tables.rows)
    counts: dict[str, list[int]] = {span.name: [0, 0, 0] for span in spans}
    begins = sorted((span.begun, span.name) for span in spans)
    for one in record.of("acknowledged"):
        name = next((name for at, name in reversed(begins) if at <= one.at), begins[0][1])
        times = found[one.device, one.number]
        counts[name][0] += 1
        counts[name][1] += times == 0
        counts[name][2] += times > 1
    return {name: (all_, lost, twice) for name, (all_, lost, twice) in counts.items()}
