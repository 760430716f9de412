"""PUT /users/…: a person's name; /users/…/audit: what happened to the account (reference 5.1, 5.6)."""

from typing import Any

import httpx
import pytest

from broker.facts import FactPhase, UserProfileUpdated
from broker.services import Services
from broker.trace.audit import AuditEvent, entry_of
from storage.records import GrantRecord, UserRecord
from tests.factories import ADA, ADA_TOKEN, APPLICATION_TOKEN, BOB, BOB_TOKEN, KITCHEN_TOKEN, NOW_MS, World, allow
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_conventions import error_of
from tests.rows import each_row


@pytest.fixture
async def ada(services: Services, world: World) -> UserRecord:
    """The Dashboard, through which her token came, may change her profile."""
    await allow(services, GrantRecord(world.ada, world.application, None, read=False, write=False, profile=True))
    return await services.accounts.users.find(ADA)


async def rename(api: httpx.AsyncClient, body: Any, user: str = "self", token: str = ADA_TOKEN) -> httpx.Response:
    return await api.put(f"/users/{user}", json=body, headers=bearer(token))


async def activity(api: httpx.AsyncClient, query: str = "") -> dict[str, Any]:
    answer = await api.get(f"/users/self/audit{query}", headers=bearer(ADA_TOKEN))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_person_changes_the_own_name_once(api: httpx.AsyncClient, services: Services, ada: UserRecord) -> None:
    told: list[UserProfileUpdated] = []
    services.core.router.subscribe(UserProfileUpdated, told.append, FactPhase.EFFECT)
    for _ in range(2):
        answer = await rename(api, {"fullName": "  Ada, Countess of Lovelace "})
        assert answer.status_code == 200, answer.text
    assert answer.json()["data"] == (await api.get("/users/self", headers=bearer(ADA_TOKEN))).json()["data"]
    assert answer.json()["data"]["fullName"] == "Ada, Countess of Lovelace"
    assert [fact.user_id for fact in told] == [ADA]
    (entry,) = (await activity(api))["data"]["entries"]
    assert (entry["event"], entry["actor"], entry["object"]) == ("profile_changed", f"user {ADA}", f"account {ADA}")


@each_row("body", [{"fullName": "x" * 65}, {"fullName": "a\nb"}, {"fullName": 1}, {}])
async def test_what_is_no_name_is_refused_and_changes_nothing(
    api: httpx.AsyncClient, ada: UserRecord, body: dict[str, Any]
) -> None:
    error = error_of(await rename(api, body), 400)
    assert [one["field"] for one in error["errors"][0]] == ["fullName"]  # type: ignore[index]
    assert (await api.get("/users/self", headers=bearer(ADA_TOKEN))).json()["data"]["fullName"] == ada.full_name


@each_row("token", [BOB_TOKEN, APPLICATION_TOKEN, KITCHEN_TOKEN])
async def test_nobody_else_renames_or_reads(api: httpx.AsyncClient, ada: UserRecord, token: str) -> None:
    error_of(await rename(api, {"fullName": "Eve"}, ADA, token), 403)
    error_of(await api.get(f"/users/{ADA}/audit", headers=bearer(token)), 403)


async def test_an_application_needs_write_on_the_profile(api: httpx.AsyncClient, world: World) -> None:
    error_of(await rename(api, {"fullName": "Eve"}), 403)
    error_of(await api.get("/users/self/audit", headers=bearer(ADA_TOKEN)), 403)


async def test_it_shows_what_the_person_did_and_what_was_done_to_the_account_and_nothing_else(
    api: httpx.AsyncClient, services: Services, ada: UserRecord
) -> None:
    entries = (
        entry_of(AuditEvent.SIGN_IN, f"account {ADA}", now_ms=NOW_MS, outcome="refused", of_stranger=True),
        entry_of(AuditEvent.RULE_CREATED, "rule 1", now_ms=NOW_MS + 1, actor=f"user {ADA}", owner=ADA),
        entry_of(AuditEvent.SIGN_IN, f"account {BOB}", now_ms=NOW_MS + 2, actor=f"user {BOB}"),
        entry_of(AuditEvent.SECOND_FACTOR_REMOVED, f"account {ADA}", now_ms=NOW_MS + 3, actor="operator 0"),
        entry_of(AuditEvent.SIGN_OUT, f"account {ADA}", now_ms=NOW_MS + 4, actor=f"user {ADA}"),
    )
    for entry in entries:
        services.core.audit.put(entry)
    found = await activity(api)
    assert [one["event"] for one in found["data"]["entries"]] == [
        "sign_out",
        "second_factor_removed",
        "rule_created",
        "sign_in",
    ]
    assert found["data"]["entries"][2]["details"] == {"owner": ADA}
    page = await activity(api, "?offset=1&count=2")
    assert (page["data"]["entries"], page["total"], page["count"]) == (found["data"]["entries"][1:3], 4, 2)


async def test_a_person_chooses_the_language_of_the_pages(api: httpx.AsyncClient, ada: UserRecord) -> None:
    assert "language" not in (await api.get("/users/self", headers=bearer(ADA_TOKEN))).json()["data"]
    for body, language in (
        ({"fullName": ada.full_name, "language": "de"}, "de"),
        ({"fullName": ada.full_name}, "de"),
        ({"fullName": "Ada", "language": "fr"}, "fr"),
        ({"fullName": "Ada", "language": ""}, None),
    ):
        assert (await rename(api, body)).json()["data"].get("language") == language
    error = error_of(await rename(api, {"fullName": "Eve", "language": "nl"}), 400)
    assert [one["field"] for one in error["errors"][0]] == ["language"]  # type: ignore[index]
    assert (await api.get("/users/self", headers=bearer(ADA_TOKEN))).json()["data"]["fullName"] == "Ada"
    assert len((await activity(api))["data"]["entries"]) == 3
