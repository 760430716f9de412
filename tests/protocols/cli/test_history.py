"""`trunkline history`: its sparklines, its messages and its errors."""

import json
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner
from cryptography import x509

from protocols.cli import main
from protocols.cli.sparklines import sparkline
from tests.certificates import Authority, usage
from tests.rows import each_row
from tests.served import served

HOUR_MS = 3_600_000
TOKEN = "33" * 16
DEVICE, UNKNOWN = "d1" * 16, "d2" * 16


@each_row(
    ("values", "drawn"),
    [
        ([], ""),
        ([None, None], ""),
        ([5], "▁"),
        ([1, 1, 1], "▁▁▁"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        ([0, None, 10], "▁ █"),
        ([1e9, 1e9 + 0.001], "▁█"),
    ],
)
def test_sparkline(values: list[float | None], drawn: str) -> None:
    assert sparkline(values) == drawn


class Daemon(BaseHTTPRequestHandler):
    """Answers as REST does: two hours with values and one without between them, and one message."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        status, body = 200, dict[str, object]()
        if query["sdid"] == UNKNOWN:
            status, body = 404, {"error": {"code": 404, "message": "Not Found", "id": "x"}}
        elif query.get("field") == "state":
            findings = [[{"field": "field", "messages": ["Numeric field only"]}]]
            status, body = 400, {"error": {"code": 4001, "message": "Validation Error", "id": "x", "errors": findings}}
        else:
            body = self.answer(url.path, query)
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def answer(self, path: str, query: dict[str, str]) -> dict[str, object]:
        assert self.headers["Authorization"] == f"bearer {TOKEN}"
        if path.endswith("/histogram"):
            assert query["interval"] == "hour"
            # `endDate` is exclusive: the running hour is in the answer.
            assert int(query["endDate"]) - int(time.time() * 1000) > HOUR_MS - 600_000
            assert int(query["endDate"]) - int(query["startDate"]) == 24 * HOUR_MS
            start = 10 * HOUR_MS
            buckets = [
                {"count": 2, "min": 1, "max": 3, "mean": 2, "ts": start},
                {"count": 1, "min": 9, "max": 9, "mean": 9, "ts": start + 2 * HOUR_MS},
            ]
            return {"interval": "hour", "startDate": start, "endDate": start + 3 * HOUR_MS, "data": buckets}
        assert (path, query["order"], query["count"]) == ("/v1.1/messages", "desc", "2")
        return {"data": [{"ts": 2000, "data": {"b": "ü"}}, {"ts": 1000, "data": {"a": 1}}]}

    def log_message(self, *_about: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with served(HTTPServer(("127.0.0.1", 0), Daemon)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def run(*arguments: str, token: str = TOKEN) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["history", *arguments], env={"TRUNKLINE_TOKEN": token})
    return result.exit_code, result.stdout, result.stderr


def test_messages_oldest_first_below_a_sparkline(url: str) -> None:
    status, out, _ = run(DEVICE, "--field", "temperature", "--count", "2", "--url", url)
    assert status == 0
    assert out.splitlines() == [
        "temperature, means by hour: ▁ █",
        "1970-01-01 10:00:00 to 1970-01-01 13:00:00, 3 values, 1 to 9",
        '1970-01-01 00:00:01  {"a":1}',
        '1970-01-01 00:00:02  {"b":"ü"}',
    ]


def test_refusals_are_one_line(url: str) -> None:
    assert run(UNKNOWN, "--url", url) == (1, "", f"trunkline: device {UNKNOWN}: refused with 404 Not Found\n")
    status, _, err = run(DEVICE, "--field", "state", "--count", "2", "--url", url)
    assert (status, err) == (
        1,
        f"trunkline: device {DEVICE}: refused with 400 Validation Error (field: Numeric field only)\n",
    )


@each_row("since", ["", "x", "0h", "1w", "367d", "-1h"])
def test_an_invalid_time(since: str) -> None:
    status, out, err = run(DEVICE, f"--since={since}")
    assert (status, out) == (2, "")
    assert err.startswith("trunkline: --since: expected")


def test_without_a_token_or_a_daemon() -> None:
    assert run(DEVICE, token="") == (2, "", "trunkline: TRUNKLINE_TOKEN must hold a token\n")
    status, _, err = run(DEVICE, "--url", "http://127.0.0.1:1")
    assert status == 1
    assert err.startswith("trunkline: http://127.0.0.1:1: ")


def test_a_gateway_with_a_certificate_of_its_own_is_trusted_by_cafile(tmp_path: Path) -> None:
    own = x509.BasicConstraints(ca=True, path_length=None), usage("key_cert_sign")  # as Python 3.13 asks for
    authority = Authority(now=datetime.now(UTC), extensions=own)
    name = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.own.certificate.public_key())  # type: ignore[arg-type]
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("gateway", extensions=(name, issuer)).files(tmp_path, "gateway"))
    (tmp_path / "ca.pem").write_text(authority.pem)
    (tmp_path / "empty.pem").touch()
    server = HTTPServer(("127.0.0.1", 0), Daemon)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with served(server):
        arguments = (DEVICE, "--count", "2", "--url", f"https://127.0.0.1:{server.server_port}")
        assert run(*arguments, "--cafile", str(tmp_path / "ca.pem"))[0] == 0
        status, _, err = run(*arguments)
        assert (status, "certificate" in err.lower()) == (1, True)
        assert run(*arguments, "--cafile", str(tmp_path / "empty.pem"))[0] == 2
