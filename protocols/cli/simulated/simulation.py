"""The task of one simulated device, and its progress."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click
import msgspec

Readings = Callable[[float], dict[str, object]]


class LinkLostError(Exception):
    """The connection could not be made, or broke. Trying again may help."""


class RefusedError(Exception):
    """The daemon refuses this device. Trying again will not help."""


@dataclass
class Simulation:
    host: str
    port: int
    device: str
    token: str
    readings: Readings
    period_seconds: float
    count: int | None
    label: str
    sent: int = 0

    @property
    def is_finished(self) -> bool:
        return self.count is not None and self.sent >= self.count

    def next_data(self) -> dict[str, object]:
        return self.readings(time.time())

    def acknowledged(self) -> None:
        self.sent += 1

    def received(self, actions: Mapping[str, Any]) -> None:
        """Print the Actions in the `data` of an Action message."""
        for action in actions.get("actions", ()):
            parameters = action.get("parameters")
            shown = f" {msgspec.json.encode(parameters).decode()}" if parameters else ""
            click.echo(f"{self.label} received {action.get('name')}{shown}")

    def refused_once(self, error: Mapping[str, Any]) -> None:
        """Print an error that the daemon reported about one message."""
        click.echo(f"{self.label}: the daemon says {error.get('code')} {error.get('message')}", err=True)
