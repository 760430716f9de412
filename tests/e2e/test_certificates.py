"""A daemon with an ECDSA and an RSA certificate: every TLS listener lets in who knows only one of both."""

import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import Daemon, command_output, device_token, running_daemon
from tests.programs import require_dtls, require_program
from tests.protocols.coap.dtls.client import make_certificate
from tests.rows import each_row

STATE = '{"data":{"state":true}}'


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("certificates")
    (certificate, key), (certificate_rsa, key_rsa) = (make_certificate(folder, kind) for kind in ("ecdsa", "rsa"))
    anywhere = '"127.0.0.1:0"'
    settings = (
        f"[secure]\ntls_bind = {anywhere}\n[accounts]\ntls_bind = {anywhere}\n"
        f"[coap]\nbind = {anywhere}\ndtls_bind = {anywhere}\n"
        f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n'
        f'certificate_rsa = "{certificate_rsa}"\nkey_rsa = "{key_rsa}"\n'
    )
    with running_daemon(folder, devices=1, settings=settings) as daemon:
        yield daemon


@each_row("cipher", ["ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"])
@each_row("listener", ["accounts", "secure"])
def test_of_either_kind(daemon: Daemon, listener: str, cipher: str, tmp_path: Path) -> None:
    """One listener has Python's TLS, the other pyOpenSSL's; the secure one refuses us only after the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(cipher)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(*make_certificate(tmp_path, "ecdsa"))
    host, _, port = daemon.addresses[listener].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as sock, context.wrap_socket(sock) as stream:
        chosen = stream.cipher()
    assert chosen is not None
    assert chosen[0] == cipher


def test_statistics_show_the_coap_listeners(daemon: Daemon) -> None:
    require_dtls()
    client = require_program("coap-client-openssl")
    for scheme in ("coap", "coaps"):
        url = f"{scheme}://{daemon.addresses[scheme]}/v1.1/messages/{device_token(0)}"
        command = [client, "-n", "-m", "post", "-t", "50", "-e", STATE, url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert '"mid"' in done.stdout
    parts = _parts(command_output("statistics", "--config", daemon.config))
    assert parts["bodies"]["bytes"] == "0.0 MiB"
    assert parts["coap"]["requests"] == parts["coaps"]["requests"] == "1"
    assert parts["coaps handshakes"]["handshakes"] == "1"


def _parts(shown: str) -> dict[str, dict[str, str]]:
    parts: dict[str, dict[str, str]] = {}
    part = ""
    for line in shown.splitlines():
        if line.startswith(" "):
            name, _, value = line.strip().rpartition("  ")
            parts[part][name.strip()] = value.strip()
        else:
            part = line
            parts[part] = {}
    return parts
