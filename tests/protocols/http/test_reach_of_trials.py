"""Reach of an application in the trials of its user, an administrator (reference 4.7 and 14.1)."""

from typing import Final

import httpx
import pytest

from broker.accounts.consent import sign_in_grant
from broker.accounts.tokens import CONSOLE_ID
from broker.secrets import token_hash
from broker.services import Services
from broker.trials.roles import TrialRole
from storage.records import GrantRecord, TokenRecord
from storage.transaction import Transaction
from tests.factories import ADA, ADA_TOKEN, BOB, NOW_MS, PANEL, World, allow, new_application
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_reach import exported_by_trial
from tests.protocols.http.test_trials import DAY_MS, ROLES, call
from tests.reach_world import GRANTS, ReachWorld, build_reach_world
from tests.trial_world import TrialWorld, add_people, build_trial, invite
from tests.type_world import add_types

pytestmark = pytest.mark.slow


PANELS, CONSOLES, OWN = "3a" * 16, "3b" * 16, "of the trial's application"
#: The application of Ada's token, and whether it manages a trial that Ada made through the Dashboard.
APPLICATIONS: Final = {
    "the one through which the trial was made": (ADA_TOKEN, True),
    "the console": (CONSOLES, True),
    "the trial's own": (OWN, True),
    "another, to which she granted trials": (PANELS, True),
    "another": (PANELS, False),
}
#: Calls that name no trial, and those of participants.
_OPEN: Final = ("/trials", "/users/self/trials", f"/users/{ADA}/trials", "/trials/{tid}", "/trials/{tid}/devicetypes")


def as_participant(method: str, path: str) -> bool:
    return path in _OPEN and (method == "GET" or path == "/trials")


async def sign_in(services: Services, world: World, made: TrialWorld, token: str = "", *, trials: bool) -> str:
    """Store Ada's tokens of the Panel, the console, and the trial's application. Returns which `token` stands for."""

    own = made.trial.record.id[::-1]  # one for each trial, and not the id itself, which logs show

    def work(tx: Transaction) -> GrantRecord:
        panel, console = tx.accounts.application_by_id(PANEL), tx.accounts.application_by_id(CONSOLE_ID)
        assert panel is not None
        if console is None:
            console = tx.accounts.put_application(
                new_application(
                    CONSOLE_ID,
                    organization=panel.organization,
                    name="Console",
                    secret=b"",
                    methods=(),
                    redirect_uris=(),
                    permissions=(),
                )
            )
        for value, application in (
            (PANELS, panel.key),
            (CONSOLES, console.key),
            (own, made.trial.record.application),
        ):
            tx.accounts.put_token(TokenRecord(token_hash(value), application, world.ada, 1, NOW_MS * 2))
            tx.accounts.put_grant(sign_in_grant(application, world.ada))
        return GrantRecord(world.ada, panel.key, None, read=True, write=True, trials=trials)

    await allow(services, await services.core.database.write(work))
    return own if token == OWN else token


@pytest.mark.parametrize("application", APPLICATIONS)
async def test_an_administrator_is_one_only_through_an_application_that_manages_the_trial(
    api: httpx.AsyncClient, services: Services, world: World, fake_clock: FakeClock, application: str
) -> None:
    token, is_managing = APPLICATIONS[application]
    await add_people(services, world)
    await add_types(services.core.database, world)
    wrong = []
    for method, path, body, expected in ROLES:
        fake_clock.advance(DAY_MS)
        made = await build_trial(services, world)
        given = await sign_in(services, world, made, token, trials=is_managing)
        at = path.format(tid=made.trial.record.id, iid=made.invitation.id)
        status = (await call(api, given, method, at, body)).status_code
        wanted = int(expected.split()[0]) if is_managing or as_participant(method, path) else 403
        if status != wanted:
            wrong.append((method, path, body, status, wanted))
    assert wrong == []


@pytest.mark.parametrize("application", APPLICATIONS)
async def test_its_secret_and_its_exports_are_for_applications_that_manage_the_trial(
    api: httpx.AsyncClient, services: Services, world: World, application: str
) -> None:
    token, is_managing = APPLICATIONS[application]
    await add_people(services, world)
    made = await build_trial(services, world)
    token = await sign_in(services, world, made, token, trials=is_managing)
    one = (await call(api, token, "GET", f"/trials/{made.trial.record.id}")).json()["data"]
    (listed,) = (await call(api, token, "GET", "/users/self/trials")).json()["data"]["trials"]
    assert one == listed
    assert one.keys() >= {"id", "name", "ownerId"}
    assert {"aid", "clientSecret"} <= one.keys() if is_managing else {"aid", "clientSecret"}.isdisjoint(one)
    answer = await exported_by_trial(api, token, made.trial.record.id)
    assert answer.status_code == (200 if is_managing else 403)
    if not is_managing:
        assert "'trials'" in answer.text  # which grant is missing


async def test_an_application_cannot_make_its_user_an_administrator_of_what_it_does_not_manage(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    """An invitation as administrator is accepted on its page, or through an application with the grant."""
    await add_people(services, world)
    made = await build_trial(services, world)
    await sign_in(services, world, made, trials=False)
    bobs = "3d" * 16

    def give_bob_a_token(tx: Transaction) -> None:
        panel = tx.accounts.application_by_id(PANEL)
        assert panel is not None
        tx.accounts.put_token(TokenRecord(token_hash(bobs), panel.key, world.bob, 1, NOW_MS * 2))

    await services.core.database.write(give_bob_a_token)
    invited = await invite(services, world, made.trial, "bob@example.org", TrialRole.ADMINISTRATOR)
    path, body = f"/trials/{made.trial.record.id}/invitations/{invited.id}", {"status": "accepted"}
    assert (await call(api, bobs, "PUT", path, body)).status_code == 403
    participant = await call(api, bobs, "GET", f"/trials/{made.trial.record.id}/participants/{BOB}/devices")
    assert participant.status_code == 200  # what is Bob's as a participant stays


@pytest.mark.parametrize("trials", [True, False])
async def test_the_addresses_of_the_invited_are_not_in_the_activity_of_the_account_either(
    api: httpx.AsyncClient, services: Services, world: World, trials: bool
) -> None:
    """An application that may change the profile reads the audit log of its user."""
    await add_people(services, world)
    made = await build_trial(services, world)
    await sign_in(services, world, made, trials=trials)
    panel = await services.accounts.applications.named(PANEL)
    await allow(services, GrantRecord(world.ada, panel.key, None, read=True, write=True, profile=True, trials=trials))
    body = {"email": "zoe@example.net", "invitationType": "participant"}
    invited = await call(api, ADA_TOKEN, "POST", f"/trials/{made.trial.record.id}/invitations", body)
    assert invited.status_code == 200
    seen = await call(api, PANELS, "GET", "/users/self/audit")
    assert "trial_invitation_sent" in seen.text
    assert ("zoe@example.net" in seen.text) is trials
    console = await call(api, CONSOLES, "GET", "/users/self/audit")
    assert "zoe@example.net" in console.text


@pytest.fixture
async def reach(services: Services, world: World) -> ReachWorld:
    return await build_reach_world(services, world)


async def test_no_other_grant_gives_trials(
    api: httpx.AsyncClient, services: Services, world: World, reach: ReachWorld
) -> None:
    """The column "trials" of the table of grants: the trial is made in the console, so that no application made it."""
    await add_people(services, world)
    made = await build_trial(services, world)
    await sign_in(services, world, made, trials=False)
    trial = (await call(api, CONSOLES, "POST", "/trials", {"name": "Sleep"})).json()["data"]
    given = {}
    for grants in GRANTS:
        await reach.grant(grants)
        shown = (await call(api, ADA_TOKEN, "GET", f"/trials/{trial['id']}")).json()["data"]
        members = await api.get(f"/trials/{trial['id']}/administrators", headers=bearer(ADA_TOKEN))
        given[grants] = ("clientSecret" in shown, members.status_code)
    assert given == {grants: (True, 200) if grants == "trials" else (False, 403) for grants in GRANTS}
