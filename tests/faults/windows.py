"""Devices that have twenty messages in flight each, by paho, and send to another daemon when one does not answer."""

import json
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from tests.daemon import Daemon, device_id, device_token

#: Messages in flight of each device.
WINDOW: Final = 20


class Windowed(threading.Thread):
    """Counts on through every fault, as `tests/faults/clients.py: Lasting` does."""

    def __init__(self, daemons: Sequence[Daemon], device: int, first: int, *, seconds: float) -> None:
        """`seconds`: how long an answer is waited for."""
        super().__init__(name=f"paho-{device}", daemon=True)
        self._daemons, self._seconds = daemons, seconds
        self.device, self.last = device, first
        self.refused = 0
        self.stop = threading.Event()
        self._turn = 0
        # paho tells an id, perhaps before `publish` returns it; both are put together when somebody asks.
        self._answers: list[tuple[float, int, int]] = []
        self._numbers: dict[tuple[int, int], int] = {}

    @property
    def acknowledged(self) -> list[tuple[float, int]]:
        """The moment and the number of each answer."""
        numbers = self._numbers
        return [(at, numbers[turn, mid]) for at, turn, mid in self._answers.copy() if (turn, mid) in numbers]

    def run(self) -> None:
        while not self.stop.is_set():
            # A daemon that stands by has no addresses yet.
            with suppress(OSError, KeyError, ValueError):
                self._talk(self._daemons[self._turn % len(self._daemons)])
            self._turn += 1
            self.stop.wait(0.05)

    def _talk(self, daemon: Daemon) -> None:
        """Send until nobody answers."""
        turn, free, lost = self._turn, threading.Semaphore(WINDOW), threading.Event()
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"windowed-{self.device}")
        client.max_inflight_messages_set(WINDOW)
        client.username_pw_set(device_id(self.device), device_token(self.device))
        client.connect_timeout = self._seconds

        def published(_client: paho.Client, _data: object, mid: int, *_: Any) -> None:
            self._answers.append((time.monotonic(), turn, mid))
            free.release()

        def disconnected(*_: Any) -> None:
            lost.set()
            free.release()

        client.on_publish, client.on_disconnect = published, disconnected
        client.connect(*daemon.host_port("mqtt"))
        client.loop_start()
        topic = f"/v1.1/messages/{device_id(self.device)}"
        try:
            while not self.stop.is_set() and free.acquire(timeout=self._seconds) and not lost.is_set():
                self.last += 1
                told = client.publish(topic, json.dumps({"intensity": self.last}), qos=1)
                self._numbers[turn, told.mid] = self.last
        finally:
            client.disconnect()
            client.loop_stop()
