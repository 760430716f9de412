"""The task of one simulated device, and its progress."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    wanted: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_finished(self) -> bool:
        return self.count is not None and self.sent >= self.count

    def next_data(self) -> dict[str, object]:
        """The readings, with the values that the device has taken because they are wanted."""
        return {**self.readings(time.time()), **self.wanted}

    def acknowledged(self) -> None:
        self.sent += 1

    def received(self, actions: Mapping[str, Any]) -> None:
        """Print the Actions in the `data` of an Action message."""
        for action in actions.get("actions", ()):
            parameters = action.get("parameters")
            shown = f" {msgspec.json.encode(parameters).decode()}" if parameters else ""
            click.echo(f"{self.label} received {action.get('name')}{shown}")

    def takes(self, wanted: Mapping[str, object]) -> None:
        """Take the wanted values, and keep them."""
        if wanted:
            self.wanted = {**self.wanted, **wanted}
            click.echo(f"{self.label} takes {msgspec.json.encode(wanted).decode()}")

    def refused_once(self, error: Mapping[str, Any]) -> None:
        """Print an error that the daemon reported about one message."""
        click.echo(f"{self.label}: the daemon says {error.get('code')} {error.get('message')}", err=True)
