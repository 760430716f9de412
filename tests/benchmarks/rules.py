"""Rules beside the log: what they cost ingest and memory, how soon they act, how many durations they hold.

    python -m tests.benchmarks.rules [--seconds 5] [--part ingest|memory|latency|many|timers|edits]

Ratios within one run count, not the figures of one machine. Messages are submitted within the process and committed
with synchronous=FULL. "ingest" is the hardest case: without a protocol, a message costs a fraction of what it costs
over MQTT. "latency" prints what a commit takes in the same run, because an Action comes two commits after its message.
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.facts import ActionStored, MessagesStored
from broker.rules import rulebook as storing
from broker.rules.rulebook import NewRule, RuleChanges
from broker.secrets import Vault
from broker.services import Services, open_services
from config.settings import Limits, Settings
from storage.database import Database
from storage.engines.sqlite import SqliteEngine
from storage.records import UserRecord
from storage.transaction import Transaction
from tests.factories import ADA, ADA_TOKEN, build_world, new_device

DEVICES, RULES_EACH = 1_000, 10


class Bench:
    def __init__(self, services: Services, caller: Caller, owner: UserRecord, devices: list[Device]) -> None:
        self.services = services
        self.caller = caller
        self.owner = owner
        self.devices = devices

    async def add_rules(self, bodies: list[dict[str, object]]) -> None:
        for start in range(0, len(bodies), 200):
            async with trio.open_nursery() as nursery:  # they commit together
                for body in bodies[start : start + 200]:
                    nursery.start_soon(self._add, body)

    async def _add(self, body: dict[str, object]) -> None:
        await self.services.rules.rulebook.create(self.caller, self.owner, NewRule("Rule", json.dumps(body).encode()))

    async def ingest(self, seconds: float) -> tuple[float, float]:
        """Messages a second until all are stored and all rules have followed; and processor microseconds for each."""
        ingest, devices = self.services.messages.ingest, self.devices
        started, used, sent = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - started < seconds:
            await ingest.wait_room()
            for _ in range(500):
                ingest.submit(devices[sent % len(devices)], b'{"temperature":%d,"state":true}' % (sent % 20))
                sent += 1
            await trio.lowlevel.checkpoint()
        await ingest.wait_committed()
        taken = time.perf_counter() - started
        while self.waiting:  # noqa: ASYNC110 - nothing tells when the rules have followed
            await trio.sleep(0.01)
        return sent / taken, (time.process_time() - used) / sent * 1e6

    @property
    def waiting(self) -> int:
        found: int = self.services.core.life.statistics()["rules"].waiting_rows  # type: ignore[attr-defined]
        return found


@asynccontextmanager
async def bench(devices: int) -> AsyncIterator[Bench]:
    vars(storing)["RULES_OF_USER"] = 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(state_dir=Path(folder), limits=Limits(rate_limits="off", quotas="off"))
        database, vault = Database(SqliteEngine(Path(folder) / "store")), Vault(Vault.new_key())
        async with open_services(settings, database, vault) as services:
            world = await build_world(database, vault)

            def add(tx: Transaction) -> list[str]:
                ids = [f"{0xBE << 32 | number:032x}" for number in range(devices)]
                for id_ in ids:
                    tx.devices.put_device(
                        new_device(
                            id_,
                            owner=world.ada,
                            device_type=world.light_type,
                            name="Light",
                            manifest_version=1,
                            manifest_version_policy="LATEST",
                            enabled=True,
                            now_ms=1,
                        )
                    )
                return ids

            found = [await services.devices.registry.find(id_) for id_ in await database.write(add)]
            caller = await services.accounts.tokens.caller(ADA_TOKEN)
            yield Bench(services, caller, await services.accounts.users.find(ADA), found)


def rule(source: str, destination: str, value: float, field: str = "temperature", **more: object) -> dict[str, object]:
    condition = {"sdid": source, "field": field, "operator": ">", "operand": {"value": value}, **more}
    return {"if": {"and": [condition]}, "then": [{"ddid": destination, "action": "setOn"}]}


async def of_ingest(seconds: float) -> None:
    async with bench(DEVICES) as without:
        await without.ingest(1)
        plain, plain_cpu = await without.ingest(seconds)
    async with bench(DEVICES) as one:
        bodies = [rule(d.id, d.id, 100 + n) for d in one.devices for n in range(RULES_EACH)]
        await one.add_rules(bodies)
        await one.ingest(1)
        ruled, ruled_cpu = await one.ingest(seconds)
    print(f"ingest without rules       {plain:>10,.0f} messages/s  {plain_cpu:6.1f} us of processor each")
    print(f"with {len(bodies):,} rules, 10 touched {ruled:>9,.0f} messages/s  {ruled_cpu:6.1f} us of processor each")
    cost = ruled_cpu - plain_cpu
    print(f"rules cost {cost:.1f} us a message, {cost / RULES_EACH:.2f} us an evaluation")
    print(f"ingest falls by {100 * (1 - ruled / plain):.0f} %")


def resident_kib() -> int:
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


async def of_memory(_seconds: float) -> None:
    async with bench(DEVICES) as one:
        await one.add_rules([rule(one.devices[0].id, one.devices[1].id, 100)] * 200)
        before = resident_kib()
        bodies = [rule(d.id, d.id, 100 + n) for d in one.devices for n in range(8)]
        await one.add_rules(bodies)
        print(f"{(resident_kib() - before) / len(bodies):.1f} KiB a rule, with {len(bodies):,} rules")


async def of_edits(_seconds: float) -> None:
    async with bench(2) as one:
        first, second = (device.id for device in one.devices)
        book = one.services.rules.rulebook
        new = NewRule("Rule", json.dumps(rule(first, second, 1)).encode())
        record = await book.create(one.caller, one.owner, new)
        for number in range(10_500):
            if number == 500:
                before = resident_kib()
            record = await book.change(
                one.caller,
                record,
                RuleChanges(body=json.dumps(rule(first, second, number, duration={"value": 60})).encode()),
            )
        print(f"10,000 edits of one rule: {(resident_kib() - before) / 1024:+.1f} MiB")


async def of_latency(seconds: float) -> None:
    """300 rules on one device, 500 messages a second, of which each triggers one rule."""
    async with bench(2) as one:
        source, destination = one.devices
        bodies = [rule(source.id, destination.id, 1_000 + n) for n in range(299)]
        await one.add_rules([*bodies, rule(source.id, destination.id, 0, "intensity")])
        sent: list[float] = []
        took: list[float] = []
        one.services.core.router.subscribe(ActionStored, lambda _: took.append(time.perf_counter() - sent[len(took)]))
        stored: list[float] = []
        one.services.core.router.subscribe(
            MessagesStored, lambda fact: stored.extend([time.perf_counter()] * len(fact.rows))
        )
        begun = trio.current_time()
        for number in range(int(seconds * 500)):
            await trio.sleep_until(begun + number / 500)
            sent.append(time.perf_counter())
            one.services.messages.ingest.submit(source, b'{"intensity":1,"temperature":%d}' % (number % 900))
        while len(took) < len(sent):  # noqa: ASYNC110 - nothing tells when the rules have followed
            await trio.sleep(0.01)
        _print_times(sent, stored, took, "300 rules, 500 messages/s")


def _print_times(sent: list[float], stored: list[float], took: list[float], load: str) -> None:
    for what, times in (("its commit", [b - a for a, b in zip(sent, stored, strict=True)]), ("Action", took)):
        times.sort()
        median, p99 = statistics.median(times) * 1000, times[int(len(times) * 0.99)] * 1000
        print(f"message to {what:<10} median {median:6.1f} ms, p99 {p99:6.1f} ms ({load})")


async def of_many(seconds: float) -> None:
    """8,000 rules on 1,000 devices at 800 messages a second: each message touches 8 rules and triggers one of them."""
    async with bench(DEVICES) as one:
        others = [(d, 1_000 + n, "temperature") for d in one.devices for n in range(7)]
        bodies = [rule(d.id, d.id, value, field) for d, value, field in others]
        await one.add_rules([*bodies, *(rule(d.id, d.id, 0, "intensity") for d in one.devices)])
        for device in one.devices:  # once: after a start the values of each device are read
            one.services.messages.ingest.submit(device, b'{"temperature":1}')
        await one.services.messages.ingest.wait_committed()
        while one.waiting:  # noqa: ASYNC110 - nothing tells when the rules have followed
            await trio.sleep(0.01)
        submitted: list[float] = []
        took: list[float] = []
        stored: list[float] = []
        one.services.core.router.subscribe(
            ActionStored, lambda _: took.append(time.perf_counter() - submitted[len(took)])
        )
        one.services.core.router.subscribe(
            MessagesStored, lambda fact: stored.extend([time.perf_counter()] * len(fact.rows))
        )
        begun, used = trio.current_time(), time.process_time()
        for number in range(int(seconds * 800)):
            await trio.sleep_until(begun + number / 800)
            submitted.append(time.perf_counter())
            payload = b'{"intensity":1,"temperature":%d}' % (number % 900)
            one.services.messages.ingest.submit(one.devices[number % DEVICES], payload)
        while len(took) < len(submitted):  # noqa: ASYNC110 - nothing tells when the rules have followed
            await trio.sleep(0.01)
        busy = 100 * (time.process_time() - used) / (trio.current_time() - begun)
        _print_times(submitted, stored, took, "8,000 rules, 800 messages/s")
        print(f"{busy:.0f} % of one processor")


async def of_timers(seconds: float) -> None:
    """10,000 durations that all run; then the processor time of the idle daemon."""
    async with bench(1_000) as one:
        length = {"value": 3_600, "acceptUpdate": True}
        await one.add_rules([rule(d.id, d.id, n, duration=length) for d in one.devices for n in range(-10, 0)])
        for device in one.devices:
            one.services.messages.ingest.submit(device, b'{"temperature":20}')
        await one.services.messages.ingest.wait_committed()
        while one.waiting:  # noqa: ASYNC110 - nothing tells when the rules have followed
            await trio.sleep(0.01)
        await trio.sleep(6)
        used = time.process_time()
        await trio.sleep(seconds)
        timers = one.services.core.life.statistics()["rules"].timers  # type: ignore[attr-defined]
        print(f"{timers:,} timers: {100 * (time.process_time() - used) / seconds:.2f} % of one processor while idle")


PARTS = {
    "ingest": of_ingest,
    "memory": of_memory,
    "latency": of_latency,
    "many": of_many,
    "timers": of_timers,
    "edits": of_edits,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--part", choices=PARTS, action="append")
    options = parser.parse_args()
    for part in options.part or PARTS:
        trio.run(PARTS[part], options.seconds)


if __name__ == "__main__":
    main()
