"""The receivers on /docs/subscriptions run, and refuse what is not signed (reference 11.4)."""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from broker.subscriptions.secrets import new_webhook_secret
from protocols.http.docs.chapters import chapters
from protocols.http.openapi.document import openapi_document
from protocols.http.openapi.serving import ALL_NOUNS
from protocols.http.rest.subscriptions import SUBSCRIPTIONS
from protocols.outbound.callbacks import webhook_headers
from tests.free_port import free_port

BODY = b'{"id":"1","data":[{"sdid":"kitchen","ts":5,"data":{"state":true}}]}'


def test_all_samples_of_the_documentation_are_run_here() -> None:
    described = chapters(openapi_document("http://here/v1.1", ALL_NOUNS))
    samples = {sample.title for chapter in described for sample in chapter.samples}
    assert samples == {"A receiver in Python", "A receiver in Node.js"}


@pytest.mark.parametrize(("title", "program", "suffix"), [("Python", sys.executable, "py"), ("Node.js", "node", "mjs")])
def test_a_receiver_of_the_documentation(tmp_path: Path, title: str, program: str, suffix: str) -> None:
    code = dict(SUBSCRIPTIONS.samples)[f"A receiver in {title}"]
    file, secret = tmp_path / f"receiver.{suffix}", new_webhook_secret()
    file.write_text(code, encoding="utf-8")
    port = free_port()
    environment = {**os.environ, "WEBHOOK_SECRET": secret, "PORT": str(port)}
    process = subprocess.Popen([program, file], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            signed = webhook_headers("id", BODY, (secret,), now=time.time())
            assert posted(client, signed).status_code == 200
            for wrong in (
                {},
                webhook_headers("id", BODY, (new_webhook_secret(),), now=time.time()),
                webhook_headers("id", BODY, (secret,), now=time.time() - 1_000),
                signed | {"webhook-id": "other"},
            ):
                assert posted(client, wrong).status_code == 401
    finally:
        process.kill()
        output, _ = process.communicate()
    assert output.splitlines()[0].startswith(b"kitchen 5 {")


def posted(client: httpx.Client, headers: dict[str, str]) -> httpx.Response:
    """The answer, as soon as the receiver listens."""
    end = time.monotonic() + 30
    while True:
        try:
            return client.post("/", content=BODY, headers=headers)
        except httpx.ConnectError:
            assert time.monotonic() < end
            time.sleep(0.05)
