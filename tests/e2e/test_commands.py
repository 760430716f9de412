"""Commands that ask a running daemon, against the real one."""

import os
from pathlib import Path

import httpx

from tests.daemon import USER_TOKEN, bearer, command_output, device_id, run_command, running_daemon
from tests.stores import configuration


def run(*arguments: str | Path) -> str:
    return command_output(*arguments, environment={**os.environ, "TRUNKLINE_TOKEN": USER_TOKEN})


def test_history_and_statistics_of_a_running_daemon(tmp_path: Path) -> None:
    with running_daemon(tmp_path, devices=1) as daemon:
        with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN)) as client:
            for number in range(3):
                body = {"sdid": device_id(0), "data": {"intensity": number}}
                client.post("/messages", json=body).raise_for_status()
        url = f"http://{daemon.addresses['http']}"
        lines = run("history", device_id(0), "--url", url).splitlines()
        assert [line.split("  ")[1] for line in lines] == [f'{{"intensity":{number}}}' for number in range(3)]
        shown = run("statistics", "--config", daemon.config)
    counters = [line.split() for line in shown.splitlines()]
    assert ["rows", "3"] in counters
    assert ["retention"] in counters
    assert any(line[:2] == ["store", "bytes"] and line[-1] == "MiB" for line in counters)


def test_an_export_is_fetched_and_unpacked(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path, devices=2) as daemon,
        httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN)) as client,
    ):
        for number in range(4):
            body = {"sdid": device_id(number % 2), "data": {"intensity": number}, "ts": 1_500_000_000_000 + number}
            client.post("/messages", json=body).raise_for_status()
        address, folder = ("--url", f"http://{daemon.addresses['http']}"), tmp_path / "out"
        assert str(folder / "about.json") in run("export", *address, "--out", folder).splitlines()
        (table,) = folder.glob("*.csv")
        assert [line.split(",")[0] for line in table.read_text().splitlines()[1:]] == [
            f"2017-07-14T02:40:00.00{number}" for number in range(4)
        ]
        assert not list(folder.glob("*.zip"))
        # A part of the archive is there from an earlier run.
        (first,) = client.get("/messages/export/history").json()["data"]["exports"]
        content = client.get(f"/messages/export/{first['exportId']}/result").content
        (folder / f"{first['exportId']}.zip").write_bytes(content[:200])
        table.unlink()
        run("export", *address, "--out", folder, "--id", first["exportId"])
        assert table.exists()
        assert run("import", table, *address).splitlines() == [f"{table}: 0 stored, 4 present, 0 wrong"]
        more = tmp_path / "more.csv"
        more.write_text("time,intensity\n2020-01-01T00:00Z,5\nnever,6\n")
        refused = run_command(
            "import", more, "--device", "Light 0", *address, environment={**os.environ, "TRUNKLINE_TOKEN": USER_TOKEN}
        )
        assert refused.returncode == 1
        assert refused.stdout == f"{more}: 1 stored, 0 present, 1 wrong\n"
        assert f"{more}:3: time: “never”" in refused.stderr
        run("export", "Light 1", "--format", "parquet", "--from", "2017-07-14", "--out", folder, *address)
    import pyarrow.parquet  # takes a moment in each process that collects this test

    (table,) = folder.glob("*.parquet")
    assert pyarrow.parquet.read_table(table).column("intensity").to_pylist() == [1, 3]


def test_statistics_without_a_daemon_says_so(tmp_path: Path) -> None:
    config = tmp_path / "trunkline.toml"
    config.write_text(configuration(f'state_dir = "{tmp_path / "state"}"\n', tmp_path / "state"), encoding="utf-8")
    done = run_command("statistics", "--config", config)
    assert (done.returncode, done.stderr) == (1, f"trunkline: no daemon runs on {tmp_path / 'state'}\n")
