"""Verifying ID tokens (OpenID Connect Core 1.0, 3.1.3.7) and reading who the person is.

A provider may leave the e-mail address and the name out of the ID token when it has a userinfo endpoint (5.4); then
they are read from the userinfo response (5.3.2).
"""

import hmac
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry
from msgspec.structs import replace

# Only signatures with a private key: never "none", and never an HMAC with the client secret.
_ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)
_SKEW_SECONDS: Final = 120
_SUBJECT_CHARACTERS: Final = 255  # OpenID Connect Core 1.0, 2


class IdTokenRefused(Exception):
    """The ID token or the userinfo response is not valid. The text is one line for the log."""


class UnknownKey(IdTokenRefused):
    """The token names a signing key that is not among the given ones: the provider may have a new key."""


class ExternalPerson(msgspec.Struct, frozen=True):
    """A person as a provider identifies them.

    Attributes:
        email: None unless the provider has verified that the address is the person's own.
        has_email_claims: the claims `email` and `email_verified` were present, whatever they said.
    """

    issuer: str
    subject: str
    email: str | None
    full_name: str
    has_email_claims: bool


def read_id_token(
    token: str,
    keys: Mapping[str, Any],
    *,
    algorithms: Collection[str],
    issuer: str,
    client_id: str,
    nonce: str,
    now_ms: int,
) -> ExternalPerson:
    """Verify signature, issuer, audience, times and nonce.

    Raises:
        UnknownKey: none of `keys` has the key id that the token names.
        IdTokenRefused: the token fails any other check.
    """
    try:
        allowed = sorted(_ALGORITHMS & set(algorithms))
        # joserfc would refuse unknown header members; RFC 7515, 4 says to ignore them.
        registry = JWSRegistry(algorithms=allowed, strict_check_header=False)
        claims = jwt.decode(token, KeySet.import_key_set(dict(keys)), registry=registry).claims  # type: ignore[arg-type]
        jwt.JWTClaimsRegistry(
            now=now_ms // 1000,
            leeway=_SKEW_SECONDS,
            iss={"essential": True, "value": issuer},
            sub={"essential": True},
            aud={"essential": True, "value": client_id},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True},
        ).validate(claims)
    except InvalidKeyIdError as error:
        raise UnknownKey("no key with this id") from error
    except (JoseError, ValueError, TypeError, KeyError) as error:  # keys and tokens may be anything
        raise IdTokenRefused(f"{type(error).__name__}: {error}") from error
    _check_party(claims, client_id)
    if not hmac.compare_digest(str(claims["nonce"]).encode(errors="surrogatepass"), nonce.encode()):
        raise IdTokenRefused("the nonce is another one")
    subject = claims["sub"]
    if not subject or len(subject) > _SUBJECT_CHARACTERS:
        raise IdTokenRefused("the subject is empty or too long")
    return _person(issuer, subject, claims)


def read_userinfo(person: ExternalPerson, claims: Mapping[str, Any]) -> ExternalPerson:
    """Complete a person with the userinfo claims. Raises IdTokenRefused: the claims have another subject."""
    if claims.get("sub") != person.subject:
        raise IdTokenRefused("userinfo is about somebody else")
    told = _person(person.issuer, person.subject, claims)
    return replace(told, full_name=told.full_name or person.full_name)


def _person(issuer: str, subject: str, claims: Mapping[str, Any]) -> ExternalPerson:
    has_email_claims = claims.keys() >= {"email", "email_verified"}
    return ExternalPerson(issuer, subject, _verified_email(claims), _name(claims), has_email_claims)


def _check_party(claims: Mapping[str, Any], client_id: str) -> None:
    """A token for several audiences must name this client as its authorized party, `azp`."""
    several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    party = claims.get("azp")
    if party != client_id and (party is not None or several):
        raise IdTokenRefused("it was given to another party")


def _verified_email(claims: Mapping[str, Any]) -> str | None:
    """The address, if it is verified. Some providers send the text "true" instead of the JSON value."""
    email, verified = claims.get("email"), claims.get("email_verified")
    return email if isinstance(email, str) and (verified is True or verified == "true") else None


def _name(claims: Mapping[str, Any]) -> str:
    name = claims.get("name")
    return name if isinstance(name, str) else ""
