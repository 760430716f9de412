"""Applications with every method, and helpers for OAuth tests."""

import base64
import hashlib
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from broker.accounts.applications import Application, find_application
from broker.accounts.authorize import AuthorizationRequest, Redirect
from broker.accounts.token_endpoints import TokenRequest
from broker.accounts.token_server import TokenResponse
from broker.secrets import Vault
from broker.services import Services
from storage.records import UserRecord
from storage.transaction import Transaction
from tests.factories import ACME, ADA, BOB, change_application, new_application, new_device_type

WEB, MOBILE, BOTH, PAGE, SERVER, TV = ("a1" * 16, "a2" * 16, "a3" * 16, "a4" * 16, "a5" * 16, "a6" * 16)
SECRETS = {one: f"s3cret %2B+{one[:2]}:x" for one in (WEB, MOBILE, BOTH, PAGE, SERVER, TV)}
CALLBACK, OTHER_CALLBACK = "https://web.example.org/callback", "https://web.example.org/other?keep=a%2Fb"
MOBILE_CALLBACK, PAGE_CALLBACK = "myapp:///done", "https://page.example.org/"
THEIR_TYPE, PROTECTED_TYPE = "dt" + "2e" * 16, "dt" + "3e" * 16
VERIFIER = "v" * 43


def challenge_of(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


_APPLICATIONS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    WEB: ("Web", ("authorization_code",), (CALLBACK, OTHER_CALLBACK)),
    MOBILE: ("Mobile", ("pkce",), (MOBILE_CALLBACK,)),
    BOTH: ("Both", ("authorization_code", "pkce"), (CALLBACK,)),
    PAGE: ("Page", ("implicit",), (PAGE_CALLBACK,)),
    SERVER: ("Server", ("client_credentials",), ()),
    TV: ("Television", ("limited_input",), ()),
}


def add_applications(tx: Transaction, vault: Vault) -> None:
    acme = tx.accounts.organization_by_id(ACME)
    assert acme is not None
    others = tx.accounts.add_organization("0b" * 16, "Others", -1)
    for id_, name, protected in (
        (THEIR_TYPE, "Their Lock", False),
        (PROTECTED_TYPE, "Protected Lock", True),
    ):
        tx.device_types.put_device_type(
            new_device_type(
                id_,
                unique_name=f"others.{name.lower().replace(' ', '_')}",
                name=name,
                organization=others.key,
                published=True,
                protected=protected,
                rsp=False,
                description=None,
                tags=(),
                now_ms=1,
            )
        )
    for id_, (name, methods, uris) in _APPLICATIONS.items():
        tx.accounts.put_application(
            new_application(
                id_,
                organization=acme.key,
                name=name,
                secret=vault.seal(SECRETS[id_]),
                methods=methods,
                redirect_uris=uris,
                permissions=(),
            )
        )


@dataclass(frozen=True, slots=True)
class OAuthWorld:
    """Ada, Bob, and the applications of `_APPLICATIONS`."""

    services: Services
    ada: UserRecord
    bob: UserRecord

    async def token(self, authorization: str = "", **form: str) -> TokenResponse:
        body = urlencode(form).encode()
        return await self.services.accounts.grants.token(
            TokenRequest.of(query=b"", body=body, authorization=authorization)
        )

    async def read(self, **query: str) -> AuthorizationRequest:
        decided = await self.services.accounts.authorize.read(urlencode(query).encode())
        assert isinstance(decided, AuthorizationRequest), decided
        return decided

    async def allow(self, **query: str) -> str:
        """The URL that Ada is redirected to after she agreed."""
        asked = await self.read(**query)
        screen = await self.services.accounts.authorize.consent_needed(asked, self.ada.key)
        outcome = await self.services.accounts.authorize.allow(asked, self.ada.key, agreed=screen)
        assert isinstance(outcome, Redirect)
        return outcome.url

    async def code(self, application: str = WEB, **query: str) -> str:
        url = await self.allow(client_id=application, response_type="code", **query)
        return query_of(url)["code"]

    async def mobile_code(self, verifier: str = VERIFIER, application: str = MOBILE) -> str:
        return await self.code(application, code_challenge=challenge_of(verifier), code_challenge_method="S256")

    async def user_tokens(self, application: str = WEB) -> dict[str, Any]:
        """Ada's tokens for an application, by the application's own flow."""
        if application == PAGE:
            url = await self.allow(client_id=PAGE, response_type="token")
            return {name: values[0] for name, values in parse_qs(urlsplit(url).fragment).items()}
        if application == TV:
            device_code = await self.approved_device_code()
            return granted(await self.token(grant_type="device_code", client_id=TV, code=device_code))
        if application == MOBILE:
            return granted(
                await self.token(
                    grant_type="authorization_code",
                    client_id=MOBILE,
                    code=await self.mobile_code(),
                    code_verifier=VERIFIER,
                )
            )
        code = await self.code(application)
        return granted(await self.token(basic(application), grant_type="authorization_code", code=code))

    async def device_code(self, **form: str) -> TokenResponse:
        body = urlencode({"client_id": TV, **form}).encode()
        return await self.services.accounts.grants.device_code(TokenRequest.of(query=b"", body=body))

    async def approved_device_code(self) -> str:
        body = (await self.device_code()).body
        waiting = await self.services.accounts.device_codes.find(body["user_code"], address="192.0.2.1")
        assert await self.services.accounts.device_codes.approve(waiting, self.ada.key, address="192.0.2.1") is None
        return str(body["device_code"])

    async def ask_for(self, application: str, permissions: list[dict[str, object]]) -> None:
        """Change what the application asks for."""
        await self.services.core.database.write(lambda tx: change_application(tx, application, permissions=permissions))

    async def change_methods(self, application: str, *methods: str) -> None:
        await provision_application(self.services, application, methods=list(methods))


async def application_of(services: Services, id_: str) -> Application:
    found = await services.core.database.read(lambda tx: find_application(tx, id_))
    assert found is not None
    return found


async def provision_application(services: Services, application: str, **changes: object) -> None:
    """Change an application as an operator does it."""
    known = await application_of(services, application)
    entry = {"id": application, "name": known.name, "organization": "Acme", **changes}
    await services.provisioning.apply({"applications": [entry]})


async def make_oauth_world(services: Services) -> OAuthWorld:
    await services.core.database.write(lambda tx: add_applications(tx, services.core.vault))
    return OAuthWorld(services, await services.accounts.users.find(ADA), await services.accounts.users.find(BOB))


def basic(application: str, secret: str | None = None) -> str:
    given = SECRETS[application] if secret is None else secret
    return "Basic " + base64.b64encode(f"{application}:{given}".encode()).decode()


def granted(answer: TokenResponse) -> dict[str, Any]:
    assert answer.status == 200, answer
    return dict(answer.body)


def refused(answer: TokenResponse) -> tuple[int, str]:
    return answer.status, answer.body["error"]


def query_of(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
