"""The details of Hypercorn that the adapter relies on, though Hypercorn does not document them."""

import hashlib
import inspect
from importlib.metadata import version
from types import ModuleType

import hypercorn.app_wrappers
import hypercorn.logging
import hypercorn.protocol
import hypercorn.protocol.h11
import hypercorn.protocol.http_stream
import hypercorn.trio.tcp_server
import hypercorn.trio.worker_context

# What each module is needed for, and the digest of its source in Hypercorn 0.18.0.
RELIED_ON: list[tuple[ModuleType, str, str]] = [
    (
        hypercorn.trio.tcp_server,
        "`_Server` overrides `run` and `protocol_send`, and `HypercornStream` answers TCPServer's calls to its stream",
        "fbec50b5df48e46d",
    ),
    (
        hypercorn.trio.worker_context,
        "the adapter sets `terminated`, and a stream stops TCPServer's `idle_task`",
        "431948d8c2f013ce",
    ),
    (hypercorn.protocol, "`_Http1` takes the place of ProtocolWrapper", "c34f9d102bb59741"),
    (
        hypercorn.protocol.h11,
        "`_Http1` replaces `connection`, a head begins with `HTTP/1.1 `, and requests are apart by `Updated`",
        "5d2cfe635578adc6",
    ),
    (hypercorn.protocol.http_stream, "`_Requests` wraps the application's `receive` and `send`", "b28bb59de67f2f28"),
    (hypercorn.app_wrappers, "ASGIWrapper calls the application", "73b5284c21881692"),
    (hypercorn.logging, "`_Log` overrides `access`, `exception` and `warning`", "7947f4d8c23963f9"),
]


def test_the_inside_of_hypercorn_is_as_the_adapter_expects_it() -> None:
    changed = [
        f"- {module.__name__}: {purpose}. Its digest is now {digest(module)!r}."
        for module, purpose, expected in RELIED_ON
        if digest(module) != expected
    ]
    advice = (
        f"Hypercorn {version('hypercorn')} differs from 0.18.0 in code that protocols/http/hypercorn_adapter.py and"
        " hypercorn_stream.py rely on. Read what has changed, adapt both files, then update the digests here and the"
        " upper bound in pyproject.toml:"
    )
    assert not changed, "\n".join((advice, *changed))


def digest(module: ModuleType) -> str:
    return hashlib.sha256(inspect.getsource(module).encode()).hexdigest()[:16]
