"""Which certificates a device type trusts (reference 7.1; RFC 5280, 6.1)."""

import datetime as dt
from collections.abc import Callable

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from broker.registration.certificates import BadCertificate
from broker.registration.trust import Authorities
from tests.certificates import DAY, Authority, Issued, Kind, new_key, usage
from tests.rows import each_row

NOW = dt.datetime(2025, 10, 9, tzinfo=dt.UTC)

CA, NO_CA = (x509.BasicConstraints(ca=ca, path_length=None) for ca in (True, False))
CLIENT, SERVER, ANY = (
    x509.ExtendedKeyUsage([purpose])
    for purpose in (
        ExtendedKeyUsageOID.CLIENT_AUTH,
        ExtendedKeyUsageOID.SERVER_AUTH,
        ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE,
    )
)


@pytest.fixture(scope="module", params=["ec", "rsa"])
def authority(request: pytest.FixtureRequest) -> Authority:
    return Authority(now=NOW, kind=request.param)


def believed(authority: Authority, issued: Issued) -> None:
    Authorities([authority.own.der]).check(issued.shown, NOW)


@each_row("kind", ["ec", "rsa"])
def test_the_signature_of_the_authority_suffices(authority: Authority, kind: Kind) -> None:
    believed(authority, authority.issue(kind=kind))


@each_row(
    "extensions",
    [
        (NO_CA, usage("digital_signature"), CLIENT),
        (usage("digital_signature", "key_agreement"),),
        (ANY,),
        (x509.SubjectAlternativeName([x509.DNSName("device.example.org")]),),
    ],
)
def test_extensions_that_a_device_certificate_may_have(
    authority: Authority, extensions: tuple[x509.ExtensionType, ...]
) -> None:
    believed(authority, authority.issue(extensions=extensions))


def test_intermediate_authorities_are_followed(authority: Authority) -> None:
    believed(authority, authority.delegate().delegate("Line 2").issue())


def test_an_intermediate_may_be_the_authority_itself(authority: Authority) -> None:
    factory = authority.delegate()
    Authorities([factory.own.der]).check(factory.issue().shown, NOW)


def test_each_of_several_authorities_is_enough(authority: Authority) -> None:
    other = Authority("Other", now=NOW)
    Authorities([other.own.der, authority.own.der]).check(authority.issue().shown, NOW)


def _self_signed(_authority: Authority) -> Issued:
    return Authority("device-1", now=NOW, extensions=()).own


def _named_as_the_authority(authority: Authority) -> Issued:
    return Authority(authority.own.certificate.subject.rfc4514_string()[3:], now=NOW, extensions=()).own


def _by_an_impostor(authority: Authority) -> Issued:
    """Signed by another authority of the same name, whose certificate is presented, too."""
    impostor = Authority(authority.own.certificate.subject.rfc4514_string()[3:], now=NOW)
    issued = impostor.issue()
    return Issued(issued.certificate, issued.key, (impostor.own.certificate,))


def _without_its_intermediate(authority: Authority) -> Issued:
    issued = authority.delegate().issue()
    return Issued(issued.certificate, issued.key)


def _with_many_intermediates(authority: Authority) -> Issued:
    issued = authority.issue()
    others = tuple(Authority(f"Other {n}", now=NOW).own.certificate for n in range(5))
    return Issued(issued.certificate, issued.key, others)


def _too_long(authority: Authority) -> Issued:
    for number in range(4):
        authority = authority.delegate(f"Level {number}")
    return authority.issue()


@each_row(
    "issue",
    [
        _self_signed,
        _named_as_the_authority,
        _by_an_impostor,
        _without_its_intermediate,
        _with_many_intermediates,
        _too_long,
        lambda _authority: Authority(now=NOW).issue(),
        lambda authority: authority.issue(starts=-3 * DAY, ends=-DAY),
        lambda authority: authority.issue(starts=DAY, ends=3 * DAY),
        lambda authority: authority.issue(key=new_key("rsa", bits=1024)),
        lambda authority: authority.issue(extensions=(CA,)),
        lambda authority: authority.own,
        lambda authority: authority.issue(extensions=(SERVER,)),
        lambda authority: authority.issue(extensions=(usage("key_encipherment"),)),
        lambda authority: authority.delegate(extensions=()).issue(),
        lambda authority: authority.delegate(extensions=(NO_CA,)).issue(),
        lambda authority: authority.delegate(extensions=(CA, usage("digital_signature"))).issue(),
        lambda authority: authority.delegate(ends=-dt.timedelta(hours=1)).issue(),
    ],
    ids=[
        "signed by itself",
        "signed by itself, in the name of the authority",
        "signed by another authority of that name",
        "its intermediate is missing",
        "too many intermediates",
        "chain too long",
        "another authority",
        "expired",
        "not valid yet",
        "weak key",
        "an authority",
        "the authority itself",
        "for servers",
        "its key must not sign",
        "issued by what says nothing of being an authority",
        "issued by what is none",
        "issued by what must not issue",
        "its intermediate has expired",
    ],
)
def test_other_certificates_are_refused(authority: Authority, issue: Callable[[Authority], Issued]) -> None:
    issued = issue(authority)
    with pytest.raises(BadCertificate):
        believed(authority, issued)


def test_the_path_length_of_an_authority_is_respected() -> None:
    authority = Authority(now=NOW, extensions=(x509.BasicConstraints(ca=True, path_length=0),))
    believed(authority, authority.issue())
    with pytest.raises(BadCertificate):
        believed(authority, authority.delegate().issue())


def test_an_expired_authority_is_not_trusted() -> None:
    authority = Authority(now=NOW, starts=-3 * DAY, ends=-DAY)
    with pytest.raises(BadCertificate):
        believed(authority, authority.issue())


@each_row("junk", [b"", b"junk", b"\x30\x82\xff\xff", b"\x00" * 2000])
def test_junk_is_refused(authority: Authority, junk: bytes) -> None:
    good = authority.issue().shown
    for shown in (type(good)(junk), type(good)(good.leaf, (junk,))):
        with pytest.raises(BadCertificate):
            Authorities([authority.own.der]).check(shown, NOW)


def test_a_certificate_of_an_unknown_version_is_refused(authority: Authority) -> None:
    """OpenSSL accepts such a certificate in the handshake; cryptography refuses to read it."""
    good = authority.issue().shown
    version_6 = good.leaf.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05", 1)
    assert version_6 != good.leaf
    for shown in (type(good)(version_6), type(good)(good.leaf, (version_6,))):
        with pytest.raises(BadCertificate):
            Authorities([authority.own.der]).check(shown, NOW)
