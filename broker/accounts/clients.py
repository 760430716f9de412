"""Client authentication at the token endpoints (RFC 6749, 2.3; reference 4.3).

An application sends a Basic header; or `client_id` and optionally `client_secret` among the parameters; or, to refresh
an implicit token, only the old token. A secret that is sent must be right, also where none is required.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_plus

import msgspec
from authlib.oauth2.rfc6749 import InvalidClientError, InvalidGrantError, InvalidRequestError

from broker.accounts.applications import Application, find_application
from broker.secrets import Vault, token_hash
from storage.records import TokenRecord
from storage.transaction import Transaction

BY_BASIC: Final = "client_secret_basic"
BY_POST: Final = "client_secret_post"
BY_ID: Final = "none"
BY_OLD_TOKEN: Final = "old_access_token"  # noqa: S105 - a name
WITH_SECRET: Final = frozenset({BY_BASIC, BY_POST})

_CREDENTIALS: Final = re.compile(r"\s*(basic|bearer)\s+(\S+)\s*", re.IGNORECASE | re.ASCII)


class Credentials(msgspec.Struct, frozen=True):
    """The credentials of an Authorization header: at most one of the two is set."""

    basic: str | None = None
    bearer: str | None = None

    @classmethod
    def of_header(cls, header: str) -> "Credentials":
        match = _CREDENTIALS.fullmatch(header)
        if match is None:
            return cls()
        return cls(basic=match[2]) if match[1].lower() == "basic" else cls(bearer=match[2])


class Identity(msgspec.Struct, frozen=True):
    application: Application
    proof: str


def authenticate_client(
    tx: Transaction, vault: Vault, credentials: Credentials, parameters: Mapping[str, str], *, by_old_token: bool
) -> Identity:
    """The calling application, and how it proved to be that application.

    Args:
        by_old_token: accept an old access token as identification when the request has neither header nor `client_id`.

    Raises:
        InvalidRequestError: the request names no application, or names two different ones.
        InvalidClientError: there is no such application, or the secret is wrong.
        InvalidGrantError: the old access token is unknown.
    """
    client_id, secret = parameters.get("client_id"), parameters.get("client_secret")
    if credentials.basic is not None:
        application, secrets = _of_basic(tx, credentials.basic)
        if client_id not in {None, application.id}:
            raise InvalidRequestError("client_id is not the one of the Authorization header")
        return _proven(vault, application, secrets, BY_BASIC)
    if client_id is not None:
        application = _known(tx, client_id)
        return _proven(vault, application, {secret} if secret is not None else set(), BY_POST)
    old = old_tokens(tx, credentials, parameters) if by_old_token else []
    if not old:
        raise InvalidRequestError("client_id is missing")
    record = tx.accounts.application(old[0].application)
    if record is None:
        raise InvalidClientError("The application does not exist")
    return Identity(Application(record), BY_OLD_TOKEN)


def old_tokens(tx: Transaction, credentials: Credentials, parameters: Mapping[str, str]) -> list[TokenRecord]:
    """The access tokens in the bearer header and in `old_access_token` of an implicit refresh. They may be expired.

    Raises:
        InvalidGrantError: one of them is unknown.
    """
    given = {token for token in (credentials.bearer, parameters.get("old_access_token")) if token is not None}
    found = [tx.accounts.token(token_hash(token)) for token in given]
    if None in found:
        raise InvalidGrantError("The old access token is not known")
    return [record for record in found if record is not None]


def named_application(tx: Transaction, credentials: Credentials, parameters: Mapping[str, str]) -> Application | None:
    """The application that the request names, whether its secret is right or not; None when there is none."""
    try:
        if credentials.basic is not None:
            return _of_basic(tx, credentials.basic)[0]
        return _known(tx, parameters.get("client_id", ""))
    except InvalidClientError:
        return None


def _of_basic(tx: Transaction, encoded: str) -> tuple[Application, set[str]]:
    """The application, and the possible secrets: clients send both parts either plain or percent-encoded."""
    try:
        text = base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise InvalidClientError("The Authorization header is malformed") from error
    name, _, secret = text.partition(":")
    application = find_application(tx, name) or _known(tx, unquote_plus(name))
    return application, {secret, unquote_plus(secret)} if secret else set()


def _known(tx: Transaction, client_id: str) -> Application:
    application = find_application(tx, client_id)
    if application is None:
        raise InvalidClientError("The application does not exist")
    return application


def _proven(vault: Vault, application: Application, secrets: set[str], proof: str) -> Identity:
    """Check the secret. Without one, the application is only identified; an empty one is none (RFC 6749, 2.3.1)."""
    if not secrets:
        return Identity(application, BY_ID)
    if not application.has_secret(vault, secrets):
        raise InvalidClientError("The client secret is wrong")
    return Identity(application, proof)
