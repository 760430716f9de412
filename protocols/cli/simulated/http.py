"""A device that posts its messages over HTTP. It cannot receive Actions."""

import time
from http import HTTPStatus

import httpx

from protocols.cli.simulated.simulation import LinkLostError, RefusedError, Simulation

_REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)


def run(simulation: Simulation) -> None:
    """Send until the simulation is finished. Raises LinkLostError or RefusedError."""
    host = f"[{simulation.host}]" if ":" in simulation.host else simulation.host
    with httpx.Client(
        base_url=f"http://{host}:{simulation.port}/v1.1",
        headers={"Authorization": f"bearer {simulation.token}"},
        trust_env=False,
    ) as client:
        while not simulation.is_finished:
            try:
                answer = client.post("/messages", json={"sdid": simulation.device, "data": simulation.next_data()})
            except httpx.TransportError as error:
                raise LinkLostError(str(error)) from error
            if answer.status_code in _REFUSALS:
                raise RefusedError(f"{answer.status_code} {answer.text}")
            if answer.is_error:
                raise LinkLostError(f"{answer.status_code} {answer.text}")
            simulation.acknowledged()
            if not simulation.is_finished:
                time.sleep(simulation.period_seconds)
