"""Both families of addresses on every listener, with clients of others (reference 25.1).

tests/protocols/coap/test_sockets.py has DTLS.
"""

import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.daemon import Daemon, device_id, device_token
from tests.e2e.coap_programs import STATE, message_id, run_program
from tests.programs import require_dtls, require_program

LISTENERS = {
    "http": "HTTP_BIND",
    "https": "HTTP_TLS_BIND",
    "accounts": "ACCOUNTS_TLS_BIND",
    "secure": "SECURE_TLS_BIND",
    "mqtt": "MQTT_BIND",
    "mqtts": "MQTT_TLS_BIND",
    "coap": "COAP_BIND",
    "coaps": "COAP_DTLS_BIND",
    "lwm2m_dtls": "LWM2M_DTLS_BIND",
    "lwm2m_tcp": "LWM2M_TCP_BIND",
    "lwm2m_tls": "LWM2M_TLS_BIND",
}
DATAGRAMS = {"coap", "coaps", "lwm2m_dtls"}


@pytest.mark.parametrize("bind", ["*:0", '["127.0.0.1:0", "[::1]:0"]'], ids=["star", "list"])
def test_every_listener_listens_on_both_families(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch, bind: str
) -> None:
    require_dtls()
    for variable in LISTENERS.values():
        monkeypatch.setenv(f"TRUNKLINE_{variable}", bind)
    tls = f'[tls]\ncertificate = "{certificate}"\nkey = "{certificate.with_name("key.pem")}"\n'
    daemon = Daemon(tmp_path / "state", tls)
    daemon.configure(devices=1)
    daemon.start()
    try:
        assert [name for name, _, _ in daemon.ready] == [name for name in LISTENERS for _ in range(2)]
        ports = {(name, ":" in host): port for name, host, port in daemon.ready}
        if bind == "*:0":
            assert all(ports[name, False] == ports[name, True] for name in LISTENERS)
        context = ssl.create_default_context(cafile=certificate)
        for is_v6, host in ((False, "127.0.0.1"), (True, "::1")):
            for name in LISTENERS.keys() - DATAGRAMS:
                with socket.create_connection((host, ports[name, is_v6]), timeout=10) as stream:
                    if name == "https":
                        context.wrap_socket(stream, server_hostname="127.0.0.1").close()
            publish(host, ports["mqtt", is_v6])
            post(host, ports["coap", is_v6])
    finally:
        assert daemon.stop() == 0


def publish(host: str, port: int) -> None:
    who = ["-u", device_id(0), "-P", device_token(0), "-t", f"/v1.1/messages/{device_id(0)}"]
    subprocess.run(
        [require_program("mosquitto_pub"), "-h", host, "-p", str(port), *who, "-q", "1", "-m", '{"state":true}'],
        check=True,
        timeout=30,
    )


def post(host: str, port: int) -> None:
    at = f"[{host}]" if ":" in host else host
    url = f"coap://{at}:{port}/v1.1/messages/{device_token(0)}"
    assert message_id(run_program(require_program("coap-client-notls"), "-m", "post", "-e", STATE, url))
