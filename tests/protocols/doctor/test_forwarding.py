"""The doctor about upstreams, and about stores that forward to this one."""

from pathlib import Path
from typing import Any

from config.settings import Forward, Settings
from protocols.doctor.forwarding import look_at_edges, look_at_forwards
from protocols.doctor.patient import CheckResult, Patient

WELL: dict[str, Any] = {
    "name": "centre",
    "to": "https://centre.example",
    "state": "sends",
    "problem": "",
    "sent": 1_234,
    "behind": 0,
    "behind_seconds": 0.0,
    "deletes_on": None,
}


def lines(tmp_path: Path, *running: dict[str, Any], mode: int = 0o600) -> list[CheckResult]:
    token = tmp_path / "token"
    token.write_text("t")
    token.chmod(mode)
    entry = Forward("centre", "https://centre.example", token_file=str(token))
    settings = Settings(state_dir=tmp_path, forward=(entry,))
    return list(look_at_forwards(Patient(settings, {"forwards": {"entries": running}}, "", "")))


def test_how_far_an_upstream_is_behind_and_why(tmp_path: Path) -> None:
    assert lines(tmp_path, WELL) == [
        CheckResult("forward", True, "centre: 1,234 messages sent to https://centre.example; nothing is behind")
    ]
    away = WELL | {"state": "waits", "problem": "It is away.", "behind": 2_000, "behind_seconds": 7_300.0}
    (line,) = lines(tmp_path, away | {"deletes_on": 1_764_000_000_000})
    assert line == CheckResult(
        "forward",
        False,
        "centre: It is away. 2,000 rows and 2 hours behind; retention begins to delete what is not sent on"
        " 2025-11-24 16:00 UTC",
    )
    (line,) = lines(tmp_path, WELL | {"behind": 3, "behind_seconds": 2.0, "deletes_on": 1_764_000_000_000})
    assert (line.ok, line.text.endswith("; 3 rows and 2 s behind")) == (True, True)
    assert lines(tmp_path, WELL | {"state": "elsewhere"}) == [
        CheckResult("forward", True, "centre: another node forwards")
    ]


def test_a_token_that_everybody_may_read_and_an_entry_that_is_not_loaded(tmp_path: Path) -> None:
    readable, unknown = lines(tmp_path, mode=0o604)
    assert (readable.ok, "chmod 600" in readable.text) == (False, True)
    assert (unknown.ok, "reload it" in unknown.text) == (False, True)
    gone = Settings(state_dir=tmp_path, forward=(Forward("centre", "https://c.example", token_file="/no/such"),))
    (missing,) = look_at_forwards(Patient(gone, None, "", ""))
    assert (missing.ok, "No such file" in missing.text) == (False, True)


def test_edges_and_why_one_was_refused(tmp_path: Path) -> None:
    edge = {"name": "attic", "messages": 5, "seen_on": None, "problem": ""}
    edges = [edge, edge | {"seen_on": 1_764_000_000_000}, edge | {"problem": "Two copies of this store send."}]
    patient = Patient(Settings(state_dir=tmp_path), {"edges": {"edges": edges}}, "", "")
    assert list(look_at_edges(patient)) == [
        CheckResult("edge", True, "attic: 5 messages; never seen"),
        CheckResult("edge", True, "attic: 5 messages; last seen 2025-11-24 16:00 UTC"),
        CheckResult("edge", False, "attic: Two copies of this store send."),
    ]
