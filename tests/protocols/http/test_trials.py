"""/trials over REST: who may make which call, and what the answers say (reference 2.11 and 14)."""

from typing import Any, Final

import httpx
import pytest
from msgspec.structs import replace

from broker.accounts.consent import sign_in_grant
from broker.secrets import token_hash
from broker.services import Services
from config.limits import DESCRIPTION_MAX_CHARACTERS, NAME_MAX_CHARACTERS
from storage.records import NEW_KEY, TokenRecord
from storage.transaction import Transaction
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    BOBS,
    BOBS_TOKEN,
    KITCHEN,
    LIGHT_TYPE,
    NOW_MS,
    World,
)
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_conventions import error_of
from tests.trial_world import INA, INA_TOKEN, OLA_TOKEN, SAM, SAM_TOKEN, TrialWorld, add_people, build_trial
from tests.type_world import add_types
from tests.wording import INVALID

pytestmark = pytest.mark.slow


DAY_MS: Final = 86_400_000
#: administrator, participant, invited, stranger, operator of the organization, application, device
TOKENS: Final = (ADA_TOKEN, BOB_TOKEN, INA_TOKEN, SAM_TOKEN, OLA_TOKEN, APPLICATION_TOKEN, BOBS_TOKEN)
#: Method, path, body, and the status for each of these in this order. Each row finds the world as it was made.
ROLES: Final[tuple[tuple[str, str, Any, str], ...]] = (
    ("POST", "/trials", {"name": "Another"}, "200 200 200 200 200 403 403"),
    ("GET", "/trials/{tid}", None, "200 200 403 403 403 403 403"),
    ("PUT", "/trials/{tid}", {"name": "Changed"}, "200 403 403 403 403 403 403"),
    ("PUT", "/trials/{tid}", {"status": "stop"}, "200 403 403 403 403 403 403"),
    ("DELETE", "/trials/{tid}", None, "200 403 403 403 403 403 403"),
    ("PUT", "/trials/{tid}/application", None, "200 403 403 403 403 403 403"),
    (
        "POST",
        "/trials/{tid}/invitations",
        {"email": "sam@example.org", "invitationType": "participant"},
        "200 403 403 403 403 403 403",
    ),
    ("GET", "/trials/{tid}/invitations", None, "200 403 403 403 403 403 403"),
    ("GET", "/trials/{tid}/invitations/{iid}", None, "200 403 200 403 403 403 403"),
    ("PUT", "/trials/{tid}/invitations/{iid}", {"status": "revoked"}, "200 403 403 403 403 403 403"),
    ("PUT", "/trials/{tid}/invitations/{iid}", {"status": "accepted"}, "403 403 200 403 403 403 403"),
    ("DELETE", "/trials/{tid}/invitations/{iid}", None, "200 403 403 403 403 403 403"),
    ("GET", "/trials/{tid}/administrators", None, "200 403 403 403 403 403 403"),
    ("GET", "/trials/{tid}/participants", None, "200 403 403 403 403 403 403"),
    ("DELETE", f"/trials/{{tid}}/administrators/{ADA}", None, "409 403 403 403 403 403 403"),
    ("DELETE", f"/trials/{{tid}}/participants/{BOB}", None, "200 403 403 403 403 403 403"),
    ("GET", "/trials/{tid}/devices", None, "200 403 403 403 403 403 403"),
    ("GET", f"/trials/{{tid}}/participants/{BOB}/devices", None, "200 200 403 403 403 403 403"),
    ("POST", f"/trials/{{tid}}/participants/{BOB}/devices", {"did": BOBS}, "403 409 403 403 403 403 403"),
    ("DELETE", f"/trials/{{tid}}/participants/{BOB}/devices/{BOBS}", None, "403 200 403 403 403 403 403"),
    ("GET", "/trials/{tid}/devicetypes", None, "200 200 403 403 403 403 403"),
    ("POST", "/trials/{tid}/devicetypes", {"dtid": "example.sensor"}, "200 403 403 403 403 403 403"),
    ("DELETE", f"/trials/{{tid}}/devicetypes/{LIGHT_TYPE}", None, "200 403 403 403 403 403 403"),
    ("GET", "/users/self/trials", None, "200 200 200 200 200 403 403"),
    ("GET", f"/users/{ADA}/trials", None, "200 403 403 403 403 403 403"),
)


@pytest.fixture
async def made(services: Services, world: World) -> TrialWorld:
    await add_people(services, world)
    return await build_trial(services, world)


async def call(
    api: httpx.AsyncClient, token: str, method: str, path: str, body: Any = None, **params: Any
) -> httpx.Response:
    return await api.request(method, path, json=body, params=params or None, headers=bearer(token))


async def data_of(api: httpx.AsyncClient, token: str, method: str, path: str, body: Any = None, **params: Any) -> Any:
    answer = await call(api, token, method, path, body, **params)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def test_who_may_make_which_call(
    api: httpx.AsyncClient, services: Services, world: World, fake_clock: FakeClock
) -> None:
    await add_people(services, world)
    await add_types(services.core.database, world)
    wrong = []
    for method, path, body, expected in ROLES:
        fake_clock.advance(DAY_MS)  # no limit of mails and trials is reached
        made = await build_trial(services, world)
        at = path.format(tid=made.trial.record.id, iid=made.invitation.id)
        # Refused callers go first: nothing may have happened before the permitted call.
        order = sorted(zip(TOKENS, expected.split(), strict=True), key=lambda one: one[1] != "403")
        seen = {token: str((await call(api, token, method, at, body)).status_code) for token, _ in order}
        if [seen[token] for token in TOKENS] != expected.split():
            wrong.append((method, path, body, list(seen.values()), expected))
    assert wrong == []


async def test_a_new_trial_has_all_its_members_and_its_application_gets_tokens(
    api: httpx.AsyncClient, services: Services, made: TrialWorld
) -> None:
    body = {
        "name": "Sleep and light",
        "description": "d" * DESCRIPTION_MAX_CHARACTERS,
        "deviceTypes": [{"dtid": "example.smart_light"}],
        "invitations": [{"email": "Sam@example.org", "invitationType": "Administrator"}],
    }
    trial = await data_of(api, ADA_TOKEN, "POST", "/trials", body)
    assert trial == {
        "id": trial["id"],
        "ownerId": ADA,
        "name": "Sleep and light",
        "description": body["description"],
        "aid": trial["aid"],
        "clientSecret": trial["clientSecret"],
        "startDate": NOW_MS,
        "endDate": None,
    }
    for member in ("id", "aid", "clientSecret"):
        assert len(bytes.fromhex(trial[member])) == 16
    (type_,) = (await data_of(api, ADA_TOKEN, "GET", f"/trials/{trial['id']}/devicetypes"))["deviceTypes"]
    assert (type_["id"], type_["uniqueName"]) == (LIGHT_TYPE, "example.smart_light")
    (invitation,) = (await data_of(api, ADA_TOKEN, "GET", f"/trials/{trial['id']}/invitations"))["invitations"]
    assert invitation == {
        "id": invitation["id"],
        "tid": trial["id"],
        "email": "Sam@example.org",
        "invitationType": "administrator",
        "sentDate": NOW_MS,
        "acceptedDate": None,
        "expirationDate": NOW_MS + DAY_MS,
        "revokedDate": None,
        "status": "sent",
    }
    token = await application_token(api, trial)
    assert (await call(api, token, "GET", f"/devices/{BOBS}")).status_code == 403  # nobody takes part


async def application_token(api: httpx.AsyncClient, trial: dict[str, Any], status: int = 200) -> str:
    url = api.base_url.copy_with(path="/accounts/token")
    form = {"grant_type": "client_credentials"}
    answer = await api.post(url, data=form, auth=(trial["aid"], trial["clientSecret"]))
    assert answer.status_code == status, answer.text
    return str(answer.json().get("access_token", ""))


async def test_only_administrators_see_the_application(api: httpx.AsyncClient, made: TrialWorld) -> None:
    path = f"/trials/{made.trial.record.id}"
    ada = await data_of(api, ADA_TOKEN, "GET", path)
    assert (ada["aid"], ada["clientSecret"]) == (made.trial.application_id, made.trial.secret)
    bob = await data_of(api, BOB_TOKEN, "GET", path)
    assert bob == {name: value for name, value in ada.items() if name not in {"aid", "clientSecret"}}
    assert (await data_of(api, ADA_TOKEN, "GET", "/users/self/trials"))["trials"] == [ada]
    assert (await data_of(api, BOB_TOKEN, "GET", f"/users/{BOB}/trials"))["trials"] == [bob]
    assert (await data_of(api, SAM_TOKEN, "GET", "/users/self/trials"))["trials"] == []
    for role, token, count in (
        ("administrator", ADA_TOKEN, 1),
        ("PARTICIPANT", ADA_TOKEN, 0),
        ("administrator", BOB_TOKEN, 0),
        ("participant", BOB_TOKEN, 1),
    ):
        page = (await call(api, token, "GET", "/users/self/trials", role=role)).json()
        assert (page["total"], page["offset"], page["count"]) == (count, 0, count)
    assert error_of(await call(api, ADA_TOKEN, "GET", "/users/self/trials", role="boss"), 400)["code"] == 4001


async def test_lists_show_members_and_devices(api: httpx.AsyncClient, made: TrialWorld) -> None:
    path = f"/trials/{made.trial.record.id}"
    (bob,) = (await data_of(api, ADA_TOKEN, "GET", f"{path}/participants"))["participants"]
    assert bob == {
        "id": BOB,
        "name": "bob-example",
        "email": "bob@example.org",
        "fullName": "Bob",
        "createdOn": 1,
        "modifiedOn": 1,
    }
    (ada,) = (await data_of(api, ADA_TOKEN, "GET", f"{path}/administrators"))["administrators"]
    assert ada["id"] == ADA
    record = await data_of(api, ADA_TOKEN, "GET", f"/devices/{KITCHEN}")
    for token, at in ((ADA_TOKEN, "devices"), (ADA_TOKEN, f"participants/{BOB}/devices")):
        page = (await call(api, token, "GET", f"{path}/{at}")).json()
        (device,) = page["data"]["devices"]
        assert (page["total"], device["id"], device["uid"], device["connected_on"]) == (1, BOBS, BOB, NOW_MS)
        assert device.keys() == record.keys() | {"connected_on"}
    assert (await call(api, ADA_TOKEN, "GET", f"{path}/participants/{SAM}/devices")).status_code == 404


#: A body, and the findings about it.
WRONG: Final[list[tuple[Any, list[tuple[str, str]]]]] = [
    ({}, [("name", "Required parameter")]),
    ({"name": ""}, [("name", "Required parameter")]),
    ({"name": "n" * (NAME_MAX_CHARACTERS + 1)}, [("name", f"Maximum length {NAME_MAX_CHARACTERS}")]),
    ({"name": 7}, [("name", "Text field only")]),
    ({"name": "n", "description": "d" * 1501}, [("description", "Maximum length 1500")]),
    ({"name": "n", "deviceTypes": {}}, [("deviceTypes", INVALID)]),
    ({"name": "n", "deviceTypes": ["x"]}, [("deviceTypes.0", INVALID)]),
    (
        {"name": "n", "deviceTypes": [{"dtid": "a"}, {}, {"dtid": 1}, {"dtid": "<a>"}]},
        [
            ("deviceTypes.1.dtid", "Required parameter"),
            ("deviceTypes.2.dtid", "Text field only"),
            ("deviceTypes.3.dtid", INVALID),
        ],
    ),
    ({"name": "n", "deviceTypes": [{"dtid": "a"}] * 21}, [("deviceTypes", "Maximum length 20")]),
    (
        {"name": "n", "invitations": [{}, {"email": 1, "invitationType": "boss"}]},
        [
            ("invitations.0.email", "Required parameter"),
            ("invitations.0.invitationType", "Required parameter"),
            ("invitations.1.email", "Text field only"),
            ("invitations.1.invitationType", INVALID),
        ],
    ),
    (
        {"name": "n", "invitations": [{"email": "nobody", "invitationType": "participant"}]},
        [("invitations.0.email", "Invalid email")],
    ),
    ({"name": "n", "invitations": [{}] * 101}, [("invitations", "Maximum length 100")]),
]


async def test_what_is_wrong_with_a_new_trial_is_named_and_nothing_is_created(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    for body, found in WRONG:
        error: Any = error_of(await call(api, ADA_TOKEN, "POST", "/trials", body), 400)
        assert (error["code"], [(one["field"], one["messages"][0]) for one in error["errors"][0]]) == (4001, found)
    assert (await data_of(api, ADA_TOKEN, "GET", "/users/self/trials"))["trials"] == []


async def test_other_wrong_values_and_states(api: httpx.AsyncClient, services: Services, made: TrialWorld) -> None:
    path = f"/trials/{made.trial.record.id}"
    participant = f"{path}/participants/{BOB}/devices"
    invitation = {"email": "ina@example.org", "invitationType": "participant"}
    for token, method, at, body, code in (
        (ADA_TOKEN, "PUT", path, {"status": "start"}, 4001),
        (ADA_TOKEN, "PUT", path, {"name": ""}, 4001),
        (ADA_TOKEN, "POST", f"{path}/devicetypes", {}, 4001),
        (ADA_TOKEN, "POST", f"{path}/devicetypes", {"dtid": "a&b"}, 4001),
        (ADA_TOKEN, "POST", f"{path}/devicetypes", {"dtid": "no.such"}, 1101),
        (ADA_TOKEN, "POST", f"{path}/devicetypes", {"dtid": LIGHT_TYPE}, 409),
        (ADA_TOKEN, "DELETE", f"{path}/devicetypes/no.such", None, 1101),
        (ADA_TOKEN, "POST", f"{path}/invitations", invitation, 409),
        (ADA_TOKEN, "POST", f"{path}/invitations", invitation | {"email": "bob@example.org"}, 409),
        (ADA_TOKEN, "POST", f"{path}/invitations", invitation | {"email": "bob"}, 4001),
        (ADA_TOKEN, "POST", f"{path}/invitations", invitation | {"invitationType": "boss"}, 4001),
        (ADA_TOKEN, "POST", f"{path}/invitations", {}, 4001),
        (ADA_TOKEN, "GET", f"{path}/invitations?status=open", None, 4001),
        (ADA_TOKEN, "PUT", f"{path}/invitations/{made.invitation.id}", {"status": "sent"}, 4001),
        (ADA_TOKEN, "PUT", f"{path}/invitations/{'f' * 32}", {"status": "revoked"}, 404),
        (ADA_TOKEN, "DELETE", f"{path}/administrators/{BOB}", None, 404),
        (ADA_TOKEN, "DELETE", f"{path}/participants/{ADA}", None, 404),
        (ADA_TOKEN, "DELETE", f"{path}/participants/{'f' * 32}", None, 1201),
        (BOB_TOKEN, "POST", participant, {}, 4001),
        (BOB_TOKEN, "POST", participant, {"did": "f" * 32}, 404),
        (BOB_TOKEN, "POST", participant, {"did": KITCHEN}, 403),
        (BOB_TOKEN, "DELETE", f"{participant}/{KITCHEN}", None, 403),
        (ADA_TOKEN, "GET", "/trials/none", None, 404),
    ):
        answer = await call(api, token, method, at, body)
        assert answer.json().get("error", {}).get("code") == code, (method, at, body, answer.text)


@pytest.mark.both_engines
async def test_the_states_of_an_invitation(
    api: httpx.AsyncClient, services: Services, made: TrialWorld, fake_clock: FakeClock
) -> None:
    path = f"/trials/{made.trial.record.id}/invitations"
    body = {"email": "sam@example.org", "invitationType": "participant"}

    async def status(id_: str) -> tuple[str, int | None, int | None]:
        shown = await data_of(api, ADA_TOKEN, "GET", f"{path}/{id_}")
        return shown["status"], shown["acceptedDate"], shown["revokedDate"]

    async def states(state: str) -> list[str]:
        return [one["id"] for one in (await data_of(api, ADA_TOKEN, "GET", path, status=state))["invitations"]]

    revoked = await data_of(api, ADA_TOKEN, "POST", path, body)
    fake_clock.advance(5)
    await data_of(api, ADA_TOKEN, "PUT", f"{path}/{revoked['id']}", {"status": "REVOKED"})
    removed = await data_of(api, ADA_TOKEN, "POST", path, body)
    assert (await data_of(api, ADA_TOKEN, "DELETE", f"{path}/{removed['id']}"))["status"] == "sent"
    error_of(await call(api, ADA_TOKEN, "GET", f"{path}/{removed['id']}"), 404)
    accepted = await data_of(api, ADA_TOKEN, "POST", path, body)
    await data_of(api, SAM_TOKEN, "PUT", f"{path}/{accepted['id']}", {"status": "accepted"})
    assert await status(revoked["id"]) == ("revoked", None, NOW_MS + 5)
    assert await status(accepted["id"]) == ("accepted", NOW_MS + 5, None)
    fake_clock.advance(DAY_MS)
    expired = made.invitation.id
    assert await status(expired) == ("expired", None, None)
    assert await states("expired") == [expired]
    assert await states("sent") == []
    assert await states("revoked") == [revoked["id"]]
    assert accepted["id"] in await states("accepted")
    for id_, token in ((revoked["id"], SAM_TOKEN), (accepted["id"], SAM_TOKEN), (expired, INA_TOKEN)):
        error_of(await call(api, token, "PUT", f"{path}/{id_}", {"status": "accepted"}), 409)
        error_of(await call(api, ADA_TOKEN, "PUT", f"{path}/{id_}", {"status": "revoked"}), 409)
        error_of(await call(api, ADA_TOKEN, "DELETE", f"{path}/{id_}"), 409)
    again = await data_of(api, ADA_TOKEN, "POST", path, {"email": "ina@example.org", "invitationType": "participant"})
    await data_of(api, INA_TOKEN, "PUT", f"{path}/{again['id']}", {"status": "accepted"})
    users = (await data_of(api, ADA_TOKEN, "GET", f"/trials/{made.trial.record.id}/participants"))["participants"]
    assert [user["id"] for user in users] == [BOB, SAM, INA]


async def test_a_stopped_trial_can_be_read_left_and_deleted_only(
    api: httpx.AsyncClient, services: Services, made: TrialWorld, fake_clock: FakeClock
) -> None:
    path = f"/trials/{made.trial.record.id}"
    token = await application_token(api, {"aid": made.trial.application_id, "clientSecret": made.trial.secret})
    assert (await call(api, token, "GET", f"/devices/{BOBS}")).status_code == 200
    fake_clock.advance(7)
    stopped = await data_of(api, ADA_TOKEN, "PUT", path, {"name": "Over", "status": "stop"})
    assert (stopped["name"], stopped["endDate"]) == ("Over", NOW_MS + 7)
    error_of(await call(api, token, "GET", f"/devices/{BOBS}"), 401)
    await application_token(api, stopped, 400)
    error_of(await call(api, ADA_TOKEN, "GET", f"{path}/invitations/{made.invitation.id}"), 404)
    for asked, method, at, body in (
        (ADA_TOKEN, "PUT", "", {"name": "Again"}),
        (ADA_TOKEN, "PUT", "", {"status": "stop"}),
        (ADA_TOKEN, "PUT", "/application", None),
        (ADA_TOKEN, "POST", "/invitations", {"email": "sam@example.org", "invitationType": "participant"}),
        (ADA_TOKEN, "POST", "/devicetypes", {"dtid": LIGHT_TYPE}),
        (ADA_TOKEN, "DELETE", f"/devicetypes/{LIGHT_TYPE}", None),
        (BOB_TOKEN, "POST", f"/participants/{BOB}/devices", {"did": BOBS}),
    ):
        assert error_of(await call(api, asked, method, path + at, body), 409)["message"] == "Trial is stopped"
    assert (await data_of(api, BOB_TOKEN, "GET", path))["endDate"] == NOW_MS + 7
    assert len((await data_of(api, ADA_TOKEN, "GET", f"{path}/devices"))["devices"]) == 1
    await data_of(api, BOB_TOKEN, "DELETE", f"{path}/participants/{BOB}/devices/{BOBS}")
    await data_of(api, ADA_TOKEN, "DELETE", f"{path}/participants/{BOB}")
    assert (await data_of(api, ADA_TOKEN, "DELETE", path))["endDate"] == NOW_MS + 7
    error_of(await call(api, ADA_TOKEN, "GET", path), 404)


async def test_a_renewed_application_has_another_id_and_secret_and_its_former_tokens_end(
    api: httpx.AsyncClient, services: Services, made: TrialWorld
) -> None:
    path = f"/trials/{made.trial.record.id}"
    old = await data_of(api, ADA_TOKEN, "GET", path)
    token = await application_token(api, old)
    new = await data_of(api, ADA_TOKEN, "PUT", f"{path}/application")
    assert new == old | {"aid": new["aid"], "clientSecret": new["clientSecret"]}
    assert {new["aid"], new["clientSecret"]}.isdisjoint({old["aid"], old["clientSecret"]})
    error_of(await call(api, token, "GET", f"/devices/{BOBS}"), 401)
    for mixed in (old, old | {"aid": new["aid"]}):
        await application_token(api, mixed, 401)
    token = await application_token(api, new)
    assert (await data_of(api, token, "GET", f"/devices/{BOBS}"))["id"] == BOBS  # what Bob granted stays


async def test_the_sessions_module_is_off_by_default(api: httpx.AsyncClient, made: TrialWorld) -> None:
    tid = made.trial.record.id
    for method, path in (
        ("POST", "/trials/sessions"),
        ("GET", "/trials/sessions/search"),
        ("GET", f"/trials/{tid}/sessions"),
        ("POST", f"/trials/{tid}/sessions/metadata"),
        ("GET", f"/trials/sessions/rules/{'f' * 32}/sharing"),
    ):
        for headers in (bearer(ADA_TOKEN), {}):
            error_of(await api.request(method, path, headers=headers), 404)


@pytest.mark.parametrize("is_empty_at_first", [True, False])
@pytest.mark.parametrize(("read", "write"), [(False, False), (True, False), (True, True)])
async def test_no_application_reaches_more_by_a_trial_of_its_own(
    api: httpx.AsyncClient, services: Services, world: World, read: bool, write: bool, is_empty_at_first: bool
) -> None:
    """An application of another organization has a token of Ada's. It makes a trial and lets Ada take part."""
    await add_people(services, world)
    token = "e1" * 16

    def sign_in(tx: Transaction) -> None:
        dashboard = tx.accounts.application(world.application)
        light = tx.device_types.by_id_or_name(LIGHT_TYPE)
        assert dashboard is not None
        assert light is not None
        other = tx.accounts.add_organization("0e" * 16, "Other", 100).key
        new = replace(dashboard, key=NEW_KEY, id="a1" * 16, name="Other", organization=other)
        application = tx.accounts.put_application(new).key
        tx.accounts.put_token(TokenRecord(token_hash(token), application, world.ada, 1, NOW_MS * 2))
        granted = sign_in_grant(application, world.ada)
        tx.accounts.put_grant(granted)
        if read:
            tx.accounts.add_grant(replace(granted, device_type=light.key, read=read, write=write))

    await services.core.database.write(sign_in)
    types = [{"dtid": LIGHT_TYPE}]
    invited = {"email": "ada@example.org", "invitationType": "participant"}
    body = {"name": "x", "deviceTypes": [] if is_empty_at_first else types, "invitations": [invited]}
    trial = await data_of(api, token, "POST", "/trials", body)
    at = f"/trials/{trial['id']}"
    (invitation,) = (await data_of(api, token, "GET", f"{at}/invitations"))["invitations"]
    await data_of(api, token, "PUT", f"{at}/invitations/{invitation['id']}", {"status": "accepted"})
    if is_empty_at_first:
        await data_of(api, token, "POST", f"{at}/devicetypes", types[0])

    record, own = await services.trials.trials.find(trial["id"]), "e2" * 16
    of_trial = TokenRecord(token_hash(own), record.application, None, 1, NOW_MS * 2)
    await services.core.database.write(lambda tx: tx.accounts.put_token(of_trial))
    expected = 200 if read and write else 403
    assert (await call(api, own, "GET", f"/devices/{KITCHEN}")).status_code == expected
    message = {"sdid": KITCHEN, "data": {"state": True}}
    assert (await call(api, own, "POST", "/messages", message)).status_code == expected
