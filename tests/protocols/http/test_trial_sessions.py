"""Sessions of trials, their metadata and rules, where the operator turned them on (reference 14.5)."""

from typing import Any
from uuid import UUID

import httpx
import pytest

from broker.services import Services
from broker.trials.roles import TrialRole
from config.settings import Settings, TrialSettings
from tests.factories import ADA, ADA_TOKEN, APPLICATION_TOKEN, BOB, BOB_TOKEN, BOBS, KITCHEN, NOW_MS, World
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_conventions import error_of
from tests.protocols.http.test_trials import call, data_of
from tests.rows import each_row
from tests.trial_world import INA_TOKEN, SAM_TOKEN, TrialWorld, add_people, build_trial, join

pytestmark = pytest.mark.slow


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return Settings(state_dir=settings.state_dir, limits=settings.limits, trials=TrialSettings(sessions="on"))


@pytest.fixture
async def made(services: Services, world: World) -> TrialWorld:
    await add_people(services, world)
    return await build_trial(services, world)


def body_of(made: TrialWorld, **changed: Any) -> dict[str, Any]:
    return {"trialId": made.trial.record.id, "participantId": BOB, "devices": f"{BOBS}, "} | changed


@pytest.mark.both_engines
async def test_a_session_from_its_creation_to_its_end(api: httpx.AsyncClient, made: TrialWorld) -> None:
    tid = made.trial.record.id
    session = await data_of(api, ADA_TOKEN, "POST", "/trials/sessions", body_of(made))
    assert session == {
        "id": session["id"],
        "uuid": str(UUID(session["id"])),
        "trialId": tid,
        "participantId": BOB,
        "devices": BOBS,
        "createdOn": NOW_MS,
    }
    path = f"/trials/sessions/{session['id']}"

    async def listed(where: str, token: str = BOB_TOKEN) -> int:
        page = (await call(api, token, "GET", f"/trials/{tid}/sessions{where}")).json()
        assert page["total"] == page["count"] == len(page["data"]["sessions"])
        return int(page["total"])

    assert (await listed(""), await listed("/ongoing")) == (1, 0)
    for wrong in ({"end": 5}, {"start": 9, "end": 5}, {"start": -1}, {"start": "soon"}):
        assert error_of(await call(api, BOB_TOKEN, "PUT", path, wrong), 400)["code"] == 4001
    begun = await data_of(api, BOB_TOKEN, "PUT", path, {"start": 1_000})
    assert begun == session | {"start": 1_000}
    assert (await listed(""), await listed("/ongoing")) == (1, 1)
    ended = await data_of(api, ADA_TOKEN, "PUT", path, {"end": 2_000})
    assert ended == begun | {"end": 2_000}
    assert await data_of(api, BOB_TOKEN, "GET", path) == ended
    assert (await listed("/ongoing"), await listed("", ADA_TOKEN)) == (0, 1)
    assert await data_of(api, ADA_TOKEN, "DELETE", path) == ended
    error_of(await call(api, ADA_TOKEN, "GET", path), 404)


async def test_who_may_and_what_is_refused(
    api: httpx.AsyncClient, services: Services, world: World, made: TrialWorld
) -> None:
    path = f"/trials/sessions/{(await data_of(api, BOB_TOKEN, 'POST', '/trials/sessions', body_of(made)))['id']}"
    tid = made.trial.record.id
    await join(services, world, made.trial, world.ada, TrialRole.PARTICIPANT)
    await data_of(api, ADA_TOKEN, "POST", "/trials/sessions", body_of(made, participantId=ADA, devices=""))
    shown = await data_of(api, BOB_TOKEN, "GET", f"/trials/{tid}/sessions")
    assert [one["participantId"] for one in shown["sessions"]] == [BOB]  # not Ada's
    for token in (INA_TOKEN, SAM_TOKEN, APPLICATION_TOKEN):
        for method, at, body in (
            ("POST", "/trials/sessions", body_of(made)),
            ("GET", path, None),
            ("PUT", path, {"start": 1}),
            ("DELETE", path, None),
            ("GET", f"/trials/{tid}/sessions", None),
            ("GET", f"/trials/{tid}/sessions/ongoing", None),
            ("GET", f"/trials/sessions/search?trialIds={tid}", None),
            ("POST", f"/trials/{tid}/sessions/metadata", {}),
        ):
            error_of(await call(api, token, method, at, body), 403)
    for token, method, at, given, code in (
        (BOB_TOKEN, "GET", f"/trials/{tid}/sessions/metadata", None, 403),
        (BOB_TOKEN, "POST", f"/trials/{tid}/sessions/rules", {}, 403),
        (BOB_TOKEN, "GET", f"/trials/sessions/search?trialIds={tid}", None, 403),
        (BOB_TOKEN, "POST", "/trials/sessions", body_of(made, participantId=ADA), 403),
        (ADA_TOKEN, "POST", "/trials/sessions", body_of(made, devices=KITCHEN), 403),
        (ADA_TOKEN, "POST", "/trials/sessions", body_of(made, devices="f" * 32), 404),
        (ADA_TOKEN, "POST", "/trials/sessions", body_of(made, trialId="f" * 32), 404),
        (ADA_TOKEN, "POST", "/trials/sessions", body_of(made, participantId="f" * 32), 1201),
        (ADA_TOKEN, "POST", "/trials/sessions", body_of(made, participantId="5a" * 16), 4001),
        (ADA_TOKEN, "POST", "/trials/sessions", {}, 4001),
        (ADA_TOKEN, "POST", "/trials/sessions", body_of(made, devices=",".join(map(str, range(51)))), 4001),
        (ADA_TOKEN, "GET", f"/trials/sessions/{'f' * 32}", None, 404),
        (ADA_TOKEN, "GET", f"/trials/sessions/search?trialIds={'f' * 32}", None, 404),
    ):
        answer = await call(api, token, method, at, given)
        assert answer.json().get("error", {}).get("code") == code, (method, at, given, answer.text)
    await data_of(api, ADA_TOKEN, "PUT", f"/trials/{tid}", {"status": "stop"})
    for method, at, given in (
        ("POST", "/trials/sessions", body_of(made)),
        ("PUT", path, {"start": 1}),
        ("POST", f"/trials/{tid}/sessions/metadata", {}),
    ):
        error_of(await call(api, ADA_TOKEN, method, at, given), 409)


@pytest.mark.both_engines
async def test_searches(api: httpx.AsyncClient, made: TrialWorld) -> None:
    tid = made.trial.record.id
    ids = []
    for number in range(3):
        devices = BOBS if number else ""
        session = await data_of(api, ADA_TOKEN, "POST", "/trials/sessions", body_of(made, devices=devices))
        ids.append(session["id"])
        if number < 2:
            times = {"start": 1_000 * number, "end": 1_000 * number + 500}
            await data_of(api, ADA_TOKEN, "PUT", f"/trials/sessions/{session['id']}", times)
    note = {"key": "mood", "sessionId": ids[2]}
    metadata = (await data_of(api, ADA_TOKEN, "POST", f"/trials/{tid}/sessions/metadata", note))["id"]
    for given, found in (
        ({}, [0, 1, 2]),
        ({"trialIds": f"{tid},"}, [0, 1, 2]),
        ({"participantIds": BOB}, [0, 1, 2]),
        ({"participantIds": ADA}, []),
        ({"deviceIds": f"{KITCHEN},{BOBS}"}, [1, 2]),
        ({"deviceIds": BOBS[:-1]}, []),
        ({"start": 1}, [1]),
        ({"end": 500}, [0]),
        ({"start": 0, "end": 1_500}, [0, 1]),
        ({"metadata": "mood"}, [2]),
        ({"metadata": f"none,{metadata}"}, [2]),
        ({"metadata": "none"}, []),
        ({"deviceIds": BOBS, "offset": 1, "count": 1}, [2]),
    ):
        page = (await call(api, ADA_TOKEN, "GET", "/trials/sessions/search", **given)).json()
        assert [one["id"] for one in page["data"]["sessions"]] == [ids[number] for number in found], given
    page = (await call(api, SAM_TOKEN, "GET", "/trials/sessions/search")).json()
    assert (page["total"], page["data"]) == (0, {"sessions": []})


@each_row(
    ("collection", "one", "member"),
    [
        ("/trials/{tid}/sessions/metadata", "/trials/{tid}/sessions/metadata/{id}", "metadata"),
        ("/trials/{tid}/sessions/rules", "/trials/sessions/rules/{id}", "rules"),
        ("/trials/{tid}/sessions/rules/metadata", "/trials/{tid}/sessions/rules/metadata/{id}", "metadata"),
    ],
)
async def test_objects_are_kept_and_returned(
    api: httpx.AsyncClient, made: TrialWorld, collection: str, one: str, member: str
) -> None:
    at = collection.format(tid=made.trial.record.id)
    sent = {"key": "mood", "if": {"field": "x", "values": [1.5, None, {"ü": True}]}, "id": "mine"}
    kept = await data_of(api, ADA_TOKEN, "POST", at, sent)
    assert kept == sent | {"id": kept["id"], "uuid": str(UUID(kept["id"]))}
    path = one.format(tid=made.trial.record.id, id=kept["id"])
    assert await data_of(api, ADA_TOKEN, "GET", path) == kept
    page = (await call(api, ADA_TOKEN, "GET", at)).json()
    assert (page["data"], page["total"], page["count"]) == ({member: [kept]}, 1, 1)
    changed = await data_of(api, ADA_TOKEN, "PUT", path, {"name": "other"})
    assert changed == {"name": "other", "id": kept["id"], "uuid": kept["uuid"]}
    for wrong, code in (({"key": 7}, 4001), ({"sessionId": []}, 4001), ({"key": "k" * 129}, 4001), ([], 400)):
        assert error_of(await call(api, ADA_TOKEN, "PUT", path, wrong), 400)["code"] == code
    assert error_of(await call(api, ADA_TOKEN, "POST", at, {"text": "x" * 16_384}), 400)["code"] == 4001
    assert await data_of(api, ADA_TOKEN, "DELETE", path) == changed
    error_of(await call(api, ADA_TOKEN, "GET", path), 404)
    error_of(await call(api, ADA_TOKEN, "GET", f"{at}/key/mood"), 404)


@pytest.mark.both_engines
async def test_metadata_is_found_by_its_key_and_rules_are_shared_in_name_only(
    api: httpx.AsyncClient, made: TrialWorld
) -> None:
    at = f"/trials/{made.trial.record.id}/sessions"
    for key in ("mood", "a b/ü", "mood"):
        await data_of(api, ADA_TOKEN, "POST", f"{at}/metadata", {"key": key})
    assert len((await data_of(api, ADA_TOKEN, "GET", f"{at}/metadata/key/mood"))["metadata"]) == 2
    rule = await data_of(api, ADA_TOKEN, "POST", f"{at}/rules", {"name": "Remind"})
    path = f"/trials/sessions/rules/{rule['id']}"
    assert await data_of(api, ADA_TOKEN, "GET", f"{path}/sharing") == {}
    sharing = {"users": [BOB], "all": False}
    assert await data_of(api, ADA_TOKEN, "PUT", f"{path}/sharing", sharing) == sharing
    assert await data_of(api, ADA_TOKEN, "GET", f"{path}/sharing") == sharing
    assert await data_of(api, ADA_TOKEN, "GET", path) == rule
    error_of(await call(api, BOB_TOKEN, "GET", path), 403)
    error_of(await call(api, ADA_TOKEN, "GET", f"{at}/metadata/{rule['id']}"), 404)  # that is a rule


@pytest.mark.both_engines
async def test_there_are_bounds(api: httpx.AsyncClient, made: TrialWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.trials.sessions.TRIAL_SESSIONS", 1)
    monkeypatch.setattr("broker.trials.documents.TRIAL_DOCUMENTS", 1)
    for path, body in (
        ("/trials/sessions", body_of(made)),
        (f"/trials/{made.trial.record.id}/sessions/metadata", {}),
        (f"/trials/{made.trial.record.id}/sessions/rules", {}),
    ):
        await data_of(api, ADA_TOKEN, "POST", path, body)
        error_of(await call(api, ADA_TOKEN, "POST", path, body), 409)


async def test_other_methods_on_the_paths_are_refused(api: httpx.AsyncClient, made: TrialWorld) -> None:
    assert (await api.post("/trials/sessions/search", headers=bearer(ADA_TOKEN))).status_code == 405
