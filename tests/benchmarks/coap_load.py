"""A load generator for CoAP over UDP and DTLS: one thread, epoll, pre-encoded messages, bounded in time.

    python -m tests.benchmarks.coap_load posts|observers|handshakes|idle --port … [--dtls] [--devices 50] [--seconds 5]

It prints one line of JSON. It is a process of its own, so it shares no interpreter with the server.
"""

import argparse
import json
import select
import socket
import struct
import sys
import time
from array import array
from collections.abc import Callable, Sequence

from OpenSSL import SSL

from tests.daemon import device_token

PAYLOAD = b'{"data":{"temperature":21.53,"intensity":48,"state":true,"text":"ok"},"ts":1760000000000}'


class Plain:
    """A connected socket."""

    def __init__(self, port: int) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setblocking(False)
        self.send: Callable[[bytes], object] = self.socket.send

    def receive(self) -> bytes | None:
        try:
            return self.socket.recv(2048)
        except BlockingIOError:
            return None


class Dtls(Plain):
    """A connected socket with DTLS by OpenSSL."""

    def __init__(self, port: int, context: SSL.Context) -> None:
        super().__init__(port)
        self._ssl = SSL.Connection(context, None)
        self._ssl.set_ciphertext_mtu(1400)
        self._ssl.set_connect_state()
        self.is_open = False
        self.send = self._encrypt
        self.step()

    def step(self) -> bool:
        """Continue the handshake. Returns whether it is done."""
        datagram: bytes | None = b""
        while datagram is not None and not self.is_open:
            if datagram:
                self._ssl.bio_write(datagram)
            try:
                self._ssl.do_handshake()
                self.is_open = True
            except SSL.WantReadError:
                pass
            self._flush()
            datagram = super().receive()
        return self.is_open

    def send_again(self) -> None:
        self._ssl.DTLSv1_handle_timeout()
        self._flush()

    def _flush(self) -> None:
        try:
            flight = self._ssl.bio_read(65536)
        except SSL.WantReadError:
            return
        while flight:  # one record to a datagram
            end = 13 + int.from_bytes(flight[11:13], "big")
            self.socket.send(flight[:end])
            flight = flight[end:]

    def _encrypt(self, data: bytes) -> None:
        self._ssl.write(data)
        self.socket.send(self._ssl.bio_read(4096))

    def receive(self) -> bytes | None:
        datagram = super().receive()
        if datagram is None:
            return None
        self._ssl.bio_write(datagram)
        try:
            return self._ssl.read(4096)
        except SSL.WantReadError:
            return b""


def client_context() -> SSL.Context:
    context = SSL.Context(SSL.DTLS_CLIENT_METHOD)
    context.set_cipher_list(b"ECDHE-ECDSA-AES128-GCM-SHA256")
    context.set_options(SSL.OP_NO_QUERY_MTU | SSL.OP_NO_TICKET)
    return context


def connect(options: argparse.Namespace, count: int) -> Sequence[Plain]:
    if not options.dtls:
        return [Plain(options.port) for _ in range(count)]
    return handshakes(options.port, count)[0]


def handshakes(port: int, count: int, at_once: int = 32) -> tuple[list[Dtls], float]:
    """Open DTLS sessions. Returns them and the seconds that all handshakes took."""
    context, begin = client_context(), time.perf_counter()
    done: list[Dtls] = []
    poll = select.epoll()
    waiting: dict[int, Dtls] = {}
    while len(done) < count and time.perf_counter() < begin + 60:
        while len(waiting) < at_once and len(done) + len(waiting) < count:
            peer = Dtls(port, context)
            if peer.is_open:  # the server answered before `step` returned
                done.append(peer)
                continue
            waiting[peer.socket.fileno()] = peer
            poll.register(peer.socket, select.EPOLLIN)
        ready = poll.poll(1.0)
        for fd, _ in ready:
            if waiting[fd].step():
                poll.unregister(fd)
                done.append(waiting.pop(fd))
        if not ready:  # a datagram was lost
            for peer in waiting.values():
                peer.send_again()
    poll.close()
    return done, time.perf_counter() - begin


def path(*segments: bytes) -> bytes:
    encoded = b""
    for index, segment in enumerate(segments):
        head = 0xB0 if index == 0 else 0
        encoded += bytes((head | len(segment),)) if len(segment) < 13 else bytes((head | 13, len(segment) - 13))
        encoded += segment
    return encoded


class Poster:
    """One device, which has as many requests under way as its window has, from its first answer on.

    Before that it has one: the daemon drops what a stranger sends beyond a few, this device does not send again, and so
    there would be fewer requests under way than it says.
    """

    def __init__(self, peer: Plain, number: int, *, path_: bytes) -> None:
        self.peer = peer
        self._tail = path_ + b"\x11\x32\xff" + PAYLOAD
        self._id = number * 977 & 0xFFFF
        self._sent: dict[bytes, float] = {}
        self._to_open = 0  # requests by which the first answer opens the window

    def send(self) -> None:
        self._id = (self._id + 1) & 0xFFFF
        token = self._id.to_bytes(2, "big")
        self._sent[token] = time.perf_counter()
        self.peer.send(struct.pack("!BBH", 0x42, 2, self._id) + token + self._tail)

    def receive(self) -> list[tuple[float, bool]]:
        """Read the answers and send a request for each. Returns the latency of each, and whether it was accepted."""
        found = []
        for _ in range(len(self._sent)):  # more cannot have come: who awaits one answer makes one call for it
            if (answer := self.peer.receive()) is None:
                break
            if len(answer) < 6 or not answer[1]:
                continue
            if answer[0] & 0x30 == 0:  # a separate response
                self.peer.send(b"\x60\0" + answer[2:4])
            at = self._sent.pop(answer[4:6], None)
            if at is not None:
                found.append((time.perf_counter() - at, answer[1] == 0x41))
                for _ in range(1 + self._to_open):
                    self.send()
                self._to_open = 0
        return found

    def begin_again(self, window: int) -> int:
        lost = len(self._sent)
        self._sent.clear()
        self._to_open = window - 1
        self.send()
        return lost


def posts(options: argparse.Namespace) -> dict[str, object]:
    posters = {}
    poll = select.epoll()
    for number, peer in enumerate(connect(options, options.devices)):
        segments = (b"m",) if options.aiocoap else (b"v1.1", b"messages", device_token(number).encode())
        posters[peer.socket.fileno()] = Poster(peer, number, path_=path(*segments))
        poll.register(peer.socket, select.EPOLLIN)
    for poster in posters.values():
        poster.begin_again(options.window)
    begin = time.perf_counter() + options.warmup
    end = begin + options.seconds
    latencies = array("d")
    refused = lost = 0
    while (now := time.perf_counter()) < end:
        ready = poll.poll(0.5, 256)
        if not ready:  # all requests were lost
            lost += sum(poster.begin_again(options.window) for poster in posters.values())
        for fd, _ in ready:
            answers = posters[fd].receive()
            if now >= begin:
                latencies.extend(latency for latency, _ in answers)
                refused += sum(not is_accepted for _, is_accepted in answers)
    ranked = sorted(latencies)
    return {
        "rate": len(latencies) / options.seconds,
        "p50_ms": _share(ranked, 0.5),
        "p99_ms": _share(ranked, 0.99),
        "refused": refused,
        "lost": lost,
    }


def _share(latencies: Sequence[float], share: float) -> float:
    return latencies[int(len(latencies) * share)] * 1000 if latencies else 0.0


def observers(options: argparse.Namespace) -> dict[str, object]:
    """Register observations, then acknowledge every notification."""
    peers = connect(options, options.devices)
    poll, by_fd = select.epoll(), {}
    for number, peer in enumerate(peers):
        by_fd[peer.socket.fileno()] = peer
        poll.register(peer.socket, select.EPOLLIN)
        segments = path(b"v1.1", b"actions", device_token(number).encode())
        # Observe 0, then Uri-Path, whose number is 5 further on.
        observe = b"\x60" + bytes((segments[0] - 0x60,)) + segments[1:]
        peer.send(struct.pack("!BBHB", 0x41, 1, number, 1) + observe)
    registered = notifications = 0
    first = last = 0.0
    end = time.perf_counter() + options.seconds + 5
    while time.perf_counter() < end:
        ready = poll.poll(0.5, 256)
        if not ready and notifications:
            break
        for fd, _ in ready:
            peer = by_fd[fd]
            while (answer := peer.receive()) is not None:
                if len(answer) < 4:
                    continue
                if answer[0] & 0x30 == 0x20:
                    registered += answer[1] == 0x45
                    if registered == len(peers):
                        sys.stderr.write("registered\n")
                        sys.stderr.flush()
                        registered += 1
                elif answer[0] & 0x30 == 0:
                    peer.send(b"\x60\0" + answer[2:4])
                    last = time.perf_counter()
                    first = first or last
                    notifications += 1
    return {"rate": notifications / (last - first) if last > first else 0.0, "notifications": notifications}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("posts", "observers", "handshakes", "idle"))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtls", action="store_true")
    parser.add_argument("--aiocoap", action="store_true", help="the path of aiocoap's server in the same benchmark")
    parser.add_argument("--devices", type=int, default=50)
    parser.add_argument("--window", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warmup", type=float, default=1.0)
    options = parser.parse_args()
    if options.what == "posts":
        result = posts(options)
    elif options.what == "observers":
        result = observers(options)
    else:
        sessions, seconds = handshakes(options.port, options.devices)
        result = {"rate": len(sessions) / seconds, "sessions": len(sessions)}
        if options.what == "idle":
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()
            sys.stdin.readline()
            return
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
