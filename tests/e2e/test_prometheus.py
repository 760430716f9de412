"""Debian's Prometheus scrapes the newest values (reference 9.11)."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.daemon import USER_TOKEN, Daemon, bearer, device_id
from tests.e2e.conftest import Rest
from tests.free_port import free_port
from tests.programs import require_program

_PATIENCE_SECONDS = 60


def test_debians_prometheus_scrapes_the_values(
    daemon: Daemon, rest: Rest, new_device: Callable[[], int], tmp_path: Path
) -> None:
    program, port, did = require_program("prometheus"), free_port(), device_id(new_device())
    body = {"sdid": did, "data": {"intensity": 42, "state": True}}
    httpx.post(f"{daemon.base_url}/messages", json=body, headers=bearer(USER_TOKEN)).raise_for_status()
    (tmp_path / "token").write_text(USER_TOKEN, encoding="utf-8")
    configuration = {
        "scrape_configs": [
            {
                "job_name": "trunkline",
                "scrape_interval": "1s",
                "metrics_path": "/v1.1/values",
                "params": {"sdids": [did]},
                "authorization": {"credentials_file": str(tmp_path / "token")},
                "static_configs": [{"targets": [daemon.addresses["http"]]}],
            }
        ]
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(configuration), encoding="utf-8")  # JSON is YAML
    command = [
        program,
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with subprocess.Popen(command) as process, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
        try:
            found = _answered(client, "trunkline_value_intensity")
            assert float(found["value"][1]) == 42
            labels = found["metric"]
            assert (labels["did"], labels["field"], labels["job"]) == (did, "intensity", "trunkline")
            assert labels["device"].startswith("Light")
            assert float(_answered(client, "trunkline_value_state")["value"][1]) == 1
            assert float(_answered(client, "up")["value"][1]) == 1
        finally:
            process.terminate()


def _answered(client: httpx.Client, query: str) -> dict[str, Any]:
    """The one series that Prometheus has for a query, once it has one."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        try:
            (one,) = client.get("/api/v1/query", params={"query": query}).raise_for_status().json()["data"]["result"]
        except (httpx.HTTPError, ValueError):
            time.sleep(0.1)
            continue
        return dict(one)
    raise AssertionError(f"Prometheus has no {query}")
