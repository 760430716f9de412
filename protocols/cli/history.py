"""`trunkline history`: the latest messages of a device, and a numeric field as a sparkline."""

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import httpx

from protocols.cli.failures import CommandError
from protocols.cli.options import cafile_option, trusting
from protocols.cli.sparklines import sparkline, time_text

_UNITS_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SINCE = re.compile(r"([1-9][0-9]{0,3})([mhd])")
#: Each interval with the longest range that the histogram allows for it, in ms.
_INTERVALS = (("minute", 3_600_000), ("hour", 86_400_000), ("day", 31 * 86_400_000), ("month", 366 * 86_400_000))
_WIDTHS_MS = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_MONTH_MS = 31 * 86_400_000
_SECONDS = 30.0
_ID = re.compile(r"[0-9a-f]{32}")
_PAGE = 100


@click.command()
@click.argument("device")
@click.option("--field", metavar="PATH", help="Show this numeric field as a sparkline of its means.")
@click.option("--since", default="24h", show_default=True, metavar="N[m|h|d]", help="How far to look back.")
@click.option("--count", type=click.IntRange(1, 100), default=10, show_default=True, help="Messages to print.")
@click.option("--url", metavar="URL", default="http://127.0.0.1:8080", show_default=True)
@cafile_option
def history(device: str, field: str | None, since: str, count: int, url: str, cafile: Path | None) -> None:
    """Print the latest messages of a device (id or name), one line of JSON each, oldest first.

    A name is one of a device of the token's user. A token that may read the device is read from the environment
    variable TRUNKLINE_TOKEN.
    """
    token = os.environ.get("TRUNKLINE_TOKEN")
    if not token:
        raise CommandError("TRUNKLINE_TOKEN must hold a token", 2)
    match = _SINCE.fullmatch(since)
    if match is None or int(match[1]) * _UNITS_MS[match[2]] > _INTERVALS[-1][1]:
        raise CommandError(f"--since: expected minutes, hours or days, at most 366d, got {since!r}", 2)
    end_ms = int(time.time() * 1000)
    start_ms = end_ms - int(match[1]) * _UNITS_MS[match[2]]
    headers = {"Authorization": f"bearer {token}"}
    try:
        base, trust = f"{url.rstrip('/')}/v1.1", trusting(cafile)
        with httpx.Client(base_url=base, headers=headers, timeout=_SECONDS, verify=trust) as client:
            device = device_id_of(client, device)
            if field is not None:
                _print_sparkline(client, device, field, start_ms, end_ms)
            times: dict[str, str | int] = {"startDate": start_ms, "endDate": end_ms, "order": "desc", "count": count}
            found = _get(client, "/messages", {"sdid": device, **times})
            for message in reversed(found["data"]):
                click.echo(f"{time_text(message['ts'])}  {_compact(message['data'])}")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CommandError(f"{url}: {error or type(error).__name__}") from error


def device_id_of(client: httpx.Client, device: str) -> str:
    """The id of the device that is called so, if it is no id. Raises CommandError."""
    if _ID.fullmatch(device):
        return device
    user = _get(client, "/users/self", {})["data"]["id"]
    found = _get(client, f"/users/{user}/devices", {"search": device, "count": _PAGE})["data"]["devices"]
    ids = [one["id"] for one in found if device in (one["id"], one["name"])]
    if len(ids) == 1:
        return str(ids[0])
    several = f": give the id: {', '.join(ids)}" if ids else ""
    raise CommandError(f"{len(ids) or 'no'} devices are called {device!r}{several}")


def _get(client: httpx.Client, path: str, params: Mapping[str, str | int]) -> Any:
    about = f"device {params['sdid']}: " if "sdid" in params else ""
    return rest_answer(client, "GET", path, about=about, params=params)


def rest_answer(client: httpx.Client, method: str, path: str, *, about: str = "", **given: Any) -> Any:
    """The JSON of a call's answer. `given` goes to the client; `about` begins the error. Raises CommandError."""
    answer = client.request(method, path, **given)
    if answer.is_success:
        return answer.json()
    try:
        error = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        raise CommandError(f"{answer.url.host}: answered {answer.status_code}, and not as a Trunkline does") from None
    findings = "; ".join(
        f"{finding['field']}: {', '.join(finding['messages'])}"
        for group in error.get("errors", ())
        for finding in group
    )
    more = f" ({findings})" if findings else ""
    raise CommandError(f"{about}refused with {answer.status_code} {error['message']}{more}")


def _print_sparkline(client: httpx.Client, device: str, field: str, start_ms: int, end_ms: int) -> None:
    interval = next(name for name, longest in _INTERVALS if end_ms - start_ms <= longest)
    # An interval later, because the answer ends before the interval of `endDate`: the running one is shown, too.
    later_ms = _WIDTHS_MS.get(interval, _MONTH_MS)
    params: dict[str, str | int] = {
        "sdid": device,
        "field": field,
        "interval": interval,
        "startDate": start_ms + later_ms,
        "endDate": end_ms + later_ms,
    }
    answer = _get(client, "/messages/analytics/histogram", params)
    buckets = {bucket["ts"]: bucket for bucket in answer["data"]}
    click.echo(f"{field}, means by {interval}: {sparkline(_means(answer, buckets)) or 'nothing'}")
    if buckets:
        lowest = min(bucket["min"] for bucket in buckets.values())
        highest = max(bucket["max"] for bucket in buckets.values())
        count = sum(bucket["count"] for bucket in buckets.values())
        click.echo(
            f"{time_text(answer['startDate'])} to {time_text(answer['endDate'])}, {count} values, {lowest} to {highest}"
        )


def _means(answer: Mapping[str, Any], buckets: Mapping[int, Mapping[str, float]]) -> list[float | None]:
    """The mean of each interval of the answer; None for an interval without values."""
    width = _WIDTHS_MS.get(answer["interval"])
    if width is None:  # months differ in length, and empty ones are left out
        return [bucket["mean"] for bucket in buckets.values()]
    starts = range(answer["startDate"], answer["endDate"], width)
    return [buckets[start]["mean"] if start in buckets else None for start in starts]


def _compact(data: object) -> str:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)
