"""Fuzz parsers.

    python -m tests.fuzz TARGET|all [--seconds 600] [--engine atheris|hypothesis] [FILE ...]

The first fifth of the time goes to changed and stretched examples of the corpus. Then, with atheris (the extra `fuzz`),
inputs follow the coverage of the product; else hypothesis makes them up. A finding ends the run and is written to a
file; the command with that file shows it again. `all` runs one target after the other, each in a process of its own,
and prints the rows of the table of tests/fuzz/README.md.
"""

import argparse
import hashlib
import importlib
import importlib.util
import logging
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, Final, NoReturn

import structlog

#: The modules whose coverage atheris follows, by target. More of them would make each start take minutes.
WATCHED: Final = {
    "mqtt": "protocols.mqtt broker.topics broker.device_sessions",
    "mqtt-packets": "protocols.mqtt",
    "coap": "protocols.coap.messages protocols.coap.requests protocols.coap.lwm2m.requests protocols.coap.lwm2m.links",
    "coap-over-tcp": "protocols.coap.messages protocols.coap.reliable",
    "blocks": "protocols.coap.blockwise protocols.coap.lwm2m.blocks",
    "websocket": "protocols.websocket.wire protocols.websocket.streamed",
    "device-frames": "protocols.websocket.frames protocols.websocket.device_channel protocols.websocket.message_pack",
    "proxy-header": "protocols.streams.proxy_protocol",
    "http-heads": "protocols.http.heads protocols.websocket.plain_handshake protocols.websocket.frames",
    "forwarded": "protocols.http.forwarded protocols.streams.proxies",
    "dtls-records": "protocols.coap.dtls.records",
    "topics": "broker.topics.tree broker.topics.access",
    "tlv": "protocols.coap.lwm2m.formats",
    "senml-json": "protocols.coap.lwm2m.formats broker.numbers",
    "senml-cbor": "protocols.coap.lwm2m.formats protocols.coap.requests",
    "lwm2m-text": "protocols.coap.lwm2m.formats",
    "cbor": "protocols.coap.requests protocols.binary_json",
    "link-format": "protocols.coap.lwm2m.links protocols.coap.lwm2m.formats",
    "manifests": "broker.device_types broker.messages.columns",
    "transforms": "broker.device_types",
    "jmespath": "broker.device_types.expressions jmespath",
    "announcements": "broker.found.announcements broker.found.definitions broker.found.templates",
    "templates": "broker.found.templates jinja2",
    "rules": "broker.rules.language",
    "schedules": "broker.rules.language.schedule broker.zones",
    "scenes-and-models": "broker.scenes.actions broker.scenes.reading broker.models.definition",
    "property-filters": "broker.device_management.properties",
    "queries": "broker.accounts.redirects broker.subscriptions.addresses protocols.http.accounts.forms",
    "approved-lists": "broker.registration.uploads protocols.http.rest.approved_lists werkzeug.sansio.multipart",
    "certificates": "broker.registration.certificates broker.registration.trust",
    "id-tokens": "broker.accounts.id_tokens joserfc",
    "settings": "config tomllib",
    "backups": "broker.backup.archive tarfile",
    "object-models": "broker.device_management.models",
    "oauth": "broker.accounts authlib.oauth2",
    "uploads": "protocols.http.rest.approved_lists protocols.http.rest.images broker.registration",
    "headers": "protocols.http.conditional protocols.http.reading broker.accounts.clients",
    "searches": "protocols.http.reading protocols.http.rest.messages storage.message_searches broker.messages.history",
    "bodies": "protocols.http.reading broker.rules.language broker.scenes broker.models.definition broker.trials",
    "parameters": "protocols.http.reading protocols.http.rest.searching",
    "requests": "protocols.http.heads protocols.http.connection protocols.http.hypercorn_exchange h11",
    "provision-files": "broker.provisioning",
}
#: Coverage makes Python slow: what takes longer is tried again without it.
_SLOWER: Final = 6
_STRETCHED: Final = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--engine", choices=("atheris", "hypothesis", "none"), default=None)
    parser.add_argument("files", nargs="*", type=Path, help="inputs to run instead")
    options = parser.parse_args()
    engine = options.engine or ("atheris" if importlib.util.find_spec("atheris") else "hypothesis")
    if options.target == "all":
        _all(options.seconds, engine)
    elif options.files:
        _replay(options.target, options.files)
    else:
        _fuzz(options.target, options.seconds, engine)


def _all(seconds: int, engine: str) -> None:
    from tests.fuzz.targets import TARGETS

    failed = []
    for name in TARGETS:
        command = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(seconds), "--engine", engine]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        counts = [
            int(found)
            for found in re.findall(r"executions: (\d+)|number_of_executed_units: (\d+)", done.stdout + done.stderr)
            for found in found
            if found
        ]
        found = re.findall(r"finding: (\S+)", done.stdout + done.stderr)
        print(f"| `{name}` | {seconds} | {sum(counts):,} | {', '.join(found) or '0'} |", flush=True)
        if done.returncode:
            failed.append(name)
            print(done.stdout[-3000:], done.stderr[-3000:], sep="\n", file=sys.stderr)
    sys.exit(bool(failed))


def _replay(name: str, files: list[Path]) -> None:
    with _runner(name, 1.0) as run:
        for path in files:
            from tests.fuzz.target import CORPUS, example

            run(example(path) if CORPUS in path.resolve().parents else path.read_bytes())
            print(f"{path}: no fault", flush=True)


def _fuzz(name: str, seconds: int, engine: str) -> None:
    logging.disable()
    structlog.configure(processors=[_drop])
    with _instrumented(engine, name), _runner(name, _SLOWER if engine == "atheris" else 1.0) as run:
        from tests.fuzz.mutation import mutations, stretches
        from tests.fuzz.targets import TARGETS

        end = time.monotonic() + seconds
        target = TARGETS[name]
        corpus, seed = target.corpus(), int(time.time())

        def one(data: bytes) -> None:
            try:
                run(data)
            except Exception:  # noqa: BLE001 - each is a finding
                if engine != "atheris" or _is_fault(name, data):
                    _found(name, data)

        made = chain(
            corpus, stretches(corpus, target.longest, seed, _STRETCHED), mutations(corpus, target.longest, seed)
        )
        count = 0
        while time.monotonic() < end - seconds * 0.8:
            one(next(made))
            count += 1
        print(f"executions: {count}", flush=True)
        left = max(1, round(end - time.monotonic()))
        if engine == "atheris":
            _with_atheris(one, corpus, target.longest, left)
        elif engine == "hypothesis":
            _with_hypothesis(one, target.longest, left)


@contextmanager
def _runner(name: str, most_seconds: float) -> Iterator[Callable[[bytes], None]]:
    from tests.fuzz.running import opened

    with opened(name, most_seconds) as run:
        yield run


def _is_fault(name: str, data: bytes) -> bool:
    """Whether an input breaks a rule in a process of its own, without coverage."""
    with TemporaryDirectory(prefix="trunkline-fuzz-") as folder:
        path = Path(folder) / "input"
        path.write_bytes(data)
        done = subprocess.run([sys.executable, "-m", "tests.fuzz", name, str(path)], capture_output=True, check=False)
    return done.returncode != 0


def _found(name: str, data: bytes) -> NoReturn:
    traceback.print_exc()
    path = Path(gettempdir()) / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    print(f"finding: {path}", flush=True)
    sys.stderr.flush()
    import os

    os._exit(1)


def _drop(*_event: object) -> Any:
    raise structlog.DropEvent


def _instrumented(engine: str, name: str) -> Any:
    if engine != "atheris":
        return nullcontext()
    atheris = importlib.import_module("atheris")
    watched = WATCHED[name].split()
    packages = {module.partition(".")[0] for module in watched}
    others = [module for package in packages for module in _modules(package) if not _is_within(module, watched)]
    return atheris.instrument_imports(include=sorted(packages), exclude=others)


def _modules(package: str) -> Iterator[str]:
    """The names of all modules of a package: atheris includes whole packages, and excludes single modules."""
    spec = importlib.util.find_spec(package)
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        for path in Path(folder).rglob("*.py"):
            parts = path.relative_to(Path(folder).parent).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_within(module: str, watched: list[str]) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in watched)


def _with_atheris(one: Callable[[bytes], None], corpus: list[bytes], longest: int, seconds: int) -> None:
    """libFuzzer ends the process itself: it prints the number of its runs."""
    atheris = importlib.import_module("atheris")
    with TemporaryDirectory(prefix="trunkline-fuzz-") as folder:
        for number, data in enumerate(corpus):
            (Path(folder) / str(number)).write_bytes(data)
        limits = [f"-max_total_time={seconds}", f"-max_len={longest}", "-timeout=60", "-rss_limit_mb=2048"]
        limits += [f"-artifact_prefix={gettempdir()}/", "-print_final_stats=1", "-verbosity=0"]
        atheris.Setup([sys.argv[0], *limits, folder], one)
        atheris.Fuzz()


def _with_hypothesis(one: Callable[[bytes], None], longest: int, seconds: int) -> None:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    end = time.monotonic() + seconds
    count = 0

    @settings(max_examples=1_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=min(longest, 4_096)))
    def some(data: bytes) -> None:
        nonlocal count
        if time.monotonic() < end:
            count += 1
            one(data)

    while time.monotonic() < end:
        some()
    print(f"executions: {count}", flush=True)


if __name__ == "__main__":
    main()
