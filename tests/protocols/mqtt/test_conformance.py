"""Each normative statement of MQTT 5.0 has a test, or a reason why it does not apply (conformance.txt)."""

import re
from collections import Counter
from pathlib import Path

_HERE = Path(__file__).parent
_FILES = {
    "codec": _HERE / "test_codec_5.py",
    "decoding": _HERE / "test_decoding.py",
    "exchange": _HERE / "test_exchange.py",
    "five": _HERE / "test_version_5.py",
    "flow": _HERE / "test_flow.py",
    "lasting": _HERE / "test_lasting_sessions.py",
    "open": _HERE / "test_open_topics.py",
    "server": _HERE / "test_server.py",
    "session": _HERE / "test_session.py",
    "streams": _HERE / "test_streams.py",
    "tree": _HERE.parents[1] / "broker" / "topics" / "test_tree.py",
    "tunnel": _HERE.parent / "websocket" / "test_tunnel.py",
    "wills": _HERE / "test_wills.py",
}
#: How many statements each chapter of the standard has (its appendix B).
_COUNTS = {"1": 5, "2": 7, "3": 175, "4": 60, "6": 4}
_LINE = re.compile(r"(\d+\.\d+\.\d+-\d+) +(client|reason: .+|\w+ test_\w+)")


def test_every_statement_has_a_test_or_a_reason() -> None:
    rows = [line for line in (_HERE / "conformance.txt").read_text().splitlines() if line and not line.startswith("#")]
    parsed = [_LINE.fullmatch(row) for row in rows]
    assert None not in parsed, [row for row, match in zip(rows, parsed, strict=True) if match is None]
    statements = [match.groups() for match in parsed if match is not None]
    assert len({number for number, _ in statements}) == len(statements)
    assert Counter(number.partition(".")[0] for number, _ in statements) == _COUNTS
    texts = {name: path.read_text() for name, path in _FILES.items()}
    for number, held_by in statements:
        if held_by != "client" and not held_by.startswith("reason: "):
            name, test = held_by.split(" ")
            assert f"def {test}(" in texts[name], number
