"""Are the server's certificates valid, whole, and can the daemon read their keys?"""

import datetime as dt
import os
import stat
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from protocols.doctor.patient import CheckResult, Patient
from protocols.streams.tls import Chain

#: Authorities such as Let's Encrypt advise to renew with 30 days left; then something did not work.
_RENEW_DAYS: Final = 21
#: systemd gives the files here to the service by an access list, which the mode does not show.
_CREDENTIALS: Final = Path("/run/credentials")


def look_at_certificates(patient: Patient) -> Iterator[CheckResult]:
    tls = patient.settings.tls
    chains = [chain for chain in (tls.first, tls.second) if chain is not None]
    if not chains:
        yield CheckResult("certificate", True, "none is configured, and no listener needs one")
    host = urlsplit(patient.settings.public_url).hostname or ""
    for chain in chains:
        if _CREDENTIALS in chain[1].parents and not chain[1].exists() and not patient.is_running:
            yield CheckResult(
                "certificate", True, f"{chain[1]}: systemd puts it there while the service runs; look then"
            )
            continue
        problem = _key_problem(chain[1], patient) or _chain_problem(chain, host)
        if problem:
            yield CheckResult("certificate", False, problem)
        else:
            yield CheckResult("certificate", True, f"{chain[0]}: {_validity(chain[0])}")


def _certificates(path: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(path.read_bytes())


def _validity(path: Path) -> str:
    return f"valid until {_certificates(path)[0].not_valid_after_utc:%Y-%m-%d}"


def _chain_problem(chain: Chain, host: str) -> str:
    path, key_path = chain
    try:
        certificates = _certificates(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    except ValueError as error:
        return f"{path}: no certificate in PEM: {error}"
    leaf = certificates[0]
    return _date_problem(path, leaf) or _link_problem(path, certificates) or _match_problem(chain, leaf, key_path, host)


def _date_problem(path: Path, leaf: x509.Certificate) -> str:
    now = dt.datetime.now(dt.UTC)
    if now < leaf.not_valid_before_utc:
        return f"{path}: valid only from {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on: is the clock right?"
    if now >= leaf.not_valid_after_utc:
        return f"{path}: expired on {leaf.not_valid_after_utc:%Y-%m-%d}: renew it, then systemctl reload trunkline"
    days = (leaf.not_valid_after_utc - now).days
    if days < _RENEW_DAYS:
        return f"{path}: expires in {days} days: renew it, then systemctl reload trunkline"
    return ""


def _link_problem(path: Path, certificates: Sequence[x509.Certificate]) -> str:
    """Check that each certificate of the file is issued by the one after it."""
    for number, (one, issuer) in enumerate(pairwise(certificates), start=1):
        try:
            one.verify_directly_issued_by(issuer)
        except (ValueError, TypeError, InvalidSignature):
            return (
                f"{path}: certificate {number} is not issued by the one after it: put the server's certificate first,"
                " then its intermediates in order"
            )
    return ""


def _match_problem(chain: Chain, leaf: x509.Certificate, key_path: Path, host: str) -> str:
    try:
        key = load_pem_private_key(key_path.read_bytes(), None)
    except OSError as error:
        return f"{key_path}: {error.strerror}"
    except (ValueError, TypeError):
        return f"{key_path}: no private key in PEM without a passphrase"
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*form) != leaf.public_key().public_bytes(*form):
        return f"{key_path}: not the key of {chain[0]}: put the key beside the certificate that was issued for it"
    if host and not _names(leaf, host):
        return f"{chain[0]}: does not name {host}, the host of public_url: clients will refuse it"
    return ""


def _names(leaf: x509.Certificate, host: str) -> bool:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    known = {name.lower() for name in names.get_values_for_type(x509.DNSName)}
    known |= {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    return host in known or f"*.{host.partition('.')[2]}" in known


def _key_problem(path: Path, patient: Patient) -> str:
    if _CREDENTIALS in path.parents:
        return ""
    try:
        status = path.stat()
    except PermissionError:
        return f"{path}: not readable for you: run the doctor as root"
    except OSError as error:
        return f"{path}: {error.strerror}"
    if status.st_mode & (stat.S_IROTH | stat.S_IWOTH):
        return f"{path}: others can read or write this key: chmod o-rw it"
    uid, gid = patient.user
    if uid == os.geteuid():
        allowed = os.access(path, os.R_OK)
    else:
        allowed = mode_allows(status, uid, gid, stat.S_IRUSR) and all(
            mode_allows(folder.stat(), uid, gid, stat.S_IXUSR) for folder in path.resolve().parents
        )
    if not allowed:
        return (
            f"{path}: user {uid} of the service cannot read this key: give it to the service with LoadCredential= in"
            " the unit, or make its group that of the service"
        )
    return ""


def mode_allows(status: os.stat_result, uid: int, gid: int, bit: int) -> bool:
    """Whether the mode alone allows it; `bit` is the owner's."""
    if uid == 0:
        return True
    if status.st_uid == uid:
        return bool(status.st_mode & bit)
    return bool(status.st_mode & (bit >> 3 if status.st_gid == gid else bit >> 6))
