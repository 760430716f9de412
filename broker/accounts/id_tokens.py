"""Who a provider says a person is, if it may be believed.

The ID token says it (OpenID Connect Core 1.0, 3.1.3.7). What a strict provider leaves out of that, because there is
userinfo to ask, is read from there (5.3.2 and 5.4).
"""

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

# Signatures with a private key. A provider that offers "none", or one that is made with our own secret, offers them to
# others.
_ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)
_SKEW_SECONDS: Final = 120
_SUBJECT_CHARACTERS: Final = 255  # OpenID Connect Core 1.0, 2


class IdTokenRefused(Exception):
    """The text is one line for the log."""


class UnknownKey(IdTokenRefused):
    """It is signed with a key that is not among these: the provider may have a new one."""


@dataclass(frozen=True, slots=True)
class ExternalPerson:
    """`email` is None unless the provider has verified that it is the person's own.

    `is_told_of_email`: whether the provider has said anything of that.
    """

    issuer: str
    subject: str
    email: str | None
    full_name: str
    is_told_of_email: bool


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
        UnknownKey: none of the keys is the one that it names.
        IdTokenRefused: anything else is not as it must be.
    """
    try:
        allowed = sorted(_ALGORITHMS & set(algorithms))
        # joserfc would refuse header members that it does not know; they say nothing here.
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
    """What userinfo says of who the ID token is about. Raises IdTokenRefused: it is about somebody else."""
    if claims.get("sub") != person.subject:
        raise IdTokenRefused("userinfo is about somebody else")
    told = _person(person.issuer, person.subject, claims)
    return replace(told, full_name=told.full_name or person.full_name)


def _person(issuer: str, subject: str, claims: Mapping[str, Any]) -> ExternalPerson:
    is_told_of_email = claims.keys() >= {"email", "email_verified"}
    return ExternalPerson(issuer, subject, _verified_email(claims), _name(claims), is_told_of_email)


def _check_party(claims: Mapping[str, Any], client_id: str) -> None:
    """A token for several parties says which of them it was given to."""
    several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    party = claims.get("azp")
    if party != client_id and (party is not None or several):
        raise IdTokenRefused("it was given to another party")


def _verified_email(claims: Mapping[str, Any]) -> str | None:
    """Some providers write the truth as a text."""
    email, verified = claims.get("email"), claims.get("email_verified")
    return email if isinstance(email, str) and (verified is True or verified == "true") else None


def _name(claims: Mapping[str, Any]) -> str:
    name = claims.get("name")
    return name if isinstance(name, str) else ""
