"""A device that posts its messages over HTTP. It cannot receive Actions."""

import time
from http import HTTPStatus

import httpx

from protocols.cli.simulated.plan import LinkLostError, Plan, RefusedError

_REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)


def run(plan: Plan) -> None:
    """Send until the plan is finished. Raises LinkLostError or RefusedError."""
    host = f"[{plan.host}]" if ":" in plan.host else plan.host
    with httpx.Client(
        base_url=f"http://{host}:{plan.port}/v1.1",
        headers={"Authorization": f"bearer {plan.token}"},
        trust_env=False,
    ) as client:
        while not plan.is_finished:
            try:
                answer = client.post("/messages", json={"sdid": plan.device, "data": plan.next_data()})
            except httpx.TransportError as error:
                raise LinkLostError(str(error)) from error
            if answer.status_code in _REFUSALS:
                raise RefusedError(f"{answer.status_code} {answer.text}")
            if answer.is_error:
                raise LinkLostError(f"{answer.status_code} {answer.text}")
            plan.acknowledged()
            if not plan.is_finished:
                time.sleep(plan.period_seconds)
