"""`trunkline demo --nodes N`: several nodes on one database, and the simulated devices over all of them.

The demo itself is the first node. The others are processes of their own with a configuration file each, so that one can
be killed or drained while the demo goes on: its devices go to another node, and it is started again.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import click
import trio

from config.settings import Address
from config.shown_command import shown_program

KEY: Final = "key"
_HOST: Final = "127.0.0.1"
#: Balancers of others are not to be waited for, and the terminal is watched.
_NOTICE_SECONDS: Final = 2.0
_READY_SECONDS: Final = 30.0
_AGAIN_SECONDS: Final = 20.0
_CONFIGURATION: Final = """\
# Made by trunkline demo --nodes.
state_dir = {state}

[http]
bind = {http}

[mqtt]
bind = {mqtt}
persistent_sessions = "on"

[coap]
bind = {coap}

[lwm2m]
dtls_bind = {lwm2m}

[outbound]
allow_private_addresses = true

[console]
operators = [{operator}]

[mcp]
tools = "act"

[log]
level = "warning"

[storage]
url = {store}

[cluster]
node = {name}
nodes = "several"
drain_notice_seconds = {notice}
"""


class DemoNode:
    """A node with a configuration file. `process` is None while it does not run, and for the demo itself."""

    def __init__(self, name: str, config: Path, state: Path) -> None:
        self.name, self.config, self.state = name, config, state
        self.addresses: Mapping[str, Address] = {}
        self.process: int | None = None
        self.up, self.down = trio.Event(), trio.Event()

    def configure(self, *, ports: Mapping[str, int], store: str, operator: str) -> None:
        """Write the file, which nobody else may read: the address of the store may have a password."""
        self.config.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.config.touch(mode=0o600)
        self.config.write_text(
            _CONFIGURATION.format(
                **{name: json.dumps(f"{_HOST}:{port}") for name, port in ports.items()},
                state=json.dumps(str(self.state.absolute())),
                operator=json.dumps(operator),
                store=json.dumps(store),
                name=json.dumps(self.name),
                notice=_NOTICE_SECONDS,
            ),
            encoding="utf-8",
        )

    def serves(self, addresses: Mapping[str, Address]) -> None:
        self.addresses, self.down = addresses, trio.Event()
        self.up.set()

    async def run_forever(self, key: Path, stopping: trio.Event) -> None:
        """Run it as a process until the demo stops, and start it again when it ends before. `key`: of the first one."""
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copy(key, self.state / KEY)  # with its mode
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when, stopping, nursery.cancel_scope)
            while True:
                status = await self._run()
                self.process, self.up = None, trio.Event()
                self.down.set()
                how = signal.Signals(-status).name if status < 0 else f"status {status}"
                click.echo(f"Node {self.name} has ended ({how}). It is started again in {_AGAIN_SECONDS:.0f} s.")
                await trio.sleep(_AGAIN_SECONDS)

    async def _run(self) -> int:
        command = [sys.executable, "-P", "-m", "protocols.cli", "serve", "--config", str(self.config)]
        process = await trio.lowlevel.open_process(
            [*command, "--until-stdin-ends"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ)
        )
        assert process.stdout is not None, "it is a pipe"  # noqa: S101 - as it was asked for
        try:
            said = b""
            async for part in process.stdout:
                said += part
                if not self.up.is_set() and said.startswith(b"trunkline ready") and b"\n" in said:
                    self.process = process.pid
                    pairs = (pair.split("=", 1) for pair in said.split(b"\n")[0].decode().split()[2:])
                    self.serves({name: Address.parse(text) for name, text in pairs})
                    click.echo(f"Node {self.name} serves: process {process.pid}, HTTP {self.addresses['http']}")
            return await process.wait()
        finally:
            if process.returncode is None:  # an interrupt stops it without a drain
                process.send_signal(signal.SIGINT)
                with trio.CancelScope(shield=True):
                    await process.wait()


async def start_others(nodes: Sequence[DemoNode], key: Path, stopping: trio.Event, nursery: trio.Nursery) -> None:
    """Start the nodes, and wait until they serve."""
    for node in nodes:
        nursery.start_soon(node.run_forever, key, stopping)
    with trio.move_on_after(_READY_SECONDS):
        for node in nodes:
            await node.up.wait()


async def simulate_over(
    nodes: Sequence[DemoNode],
    first: int,
    listener: str,
    simulate: Callable[[Address, trio.Event], Awaitable[None]],
    stopping: trio.Event,
) -> None:
    """Run a simulated device at one node after the other: at the next one when its node has ended.

    Args:
        nodes: all of them.
        first: the number of the node with which it begins.
        listener: of the protocol, as in the ready line.
        simulate: called with the address and the event that ends it.
        stopping: the demo stops.
    """
    at = first
    while not stopping.is_set():
        node = next((node for node in _from(nodes, at) if node.up.is_set()), None)
        if node is None:  # all are down
            await _any_of([stopping, *(one.up for one in nodes)])
            continue
        at = nodes.index(node) + 1
        ended = trio.Event()
        async with trio.open_nursery() as nursery:
            for event in (stopping, node.down):
                nursery.start_soon(_set_when, event, ended)
            await simulate(node.addresses[listener], ended)
            nursery.cancel_scope.cancel()


def introduction_of(nodes: Sequence[DemoNode], balancer: str, shown: Address) -> list[str]:
    """The lines about the nodes and the balancer, and what to look at, at the address of both or of a node."""
    lines, title = list[str](), "Nodes"
    for node in nodes:
        if node.addresses:
            http, mqtt, coap = (node.addresses[one] for one in ("http", "mqtt", "coap"))
            which = "this one" if node.process is None else f"process {node.process}"
            lines.append(f"  {title:<10}{node.name}: HTTP {http}   MQTT {mqtt}   CoAP {coap}   {which}")
            title = ""
    lines.append(f"  Balancer  {balancer}")
    other = next((node for node in nodes if node.process is not None), None)
    if other is not None:
        operator = f"http://{shown}/operator"
        lines += [
            f"  Look at   {operator}: each node, its work for all, how far it is behind",
            f"            kill -9 {other.process}: its devices go to the others, and its work within 8 s. The chart of",
            "            a device goes on, and nothing that was acknowledged is lost. Without a gap it is taken out by",
            f"            {shown_program()} drain --config {other.config}",
        ]
    return lines


def _from(nodes: Sequence[DemoNode], at: int) -> Sequence[DemoNode]:
    """The nodes from one of them on, around."""
    first = at % len(nodes)
    return [*nodes[first:], *nodes[:first]]


async def _any_of(events: Sequence[trio.Event]) -> None:
    async with trio.open_nursery() as nursery:
        for event in events:
            nursery.start_soon(_cancel_when, event, nursery.cancel_scope)


async def _set_when(event: trio.Event, other: trio.Event) -> None:
    await event.wait()
    other.set()


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
