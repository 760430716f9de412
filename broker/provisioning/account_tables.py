"""The tables `organizations`, `users`, `invitations`, `applications`, `tokens` and `grants` of the provision file."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec
from cryptography.fernet import InvalidToken
from msgspec.structs import replace

from broker.accounts.application_ends import PROVISIONED
from broker.accounts.claims import Claims
from broker.accounts.consent import NOT_TYPES, sign_in_grant
from broker.accounts.consent_words import PROFILE, TRIALS
from broker.accounts.sign_up import add_account
from broker.facts import GrantsChanged, UserProfileUpdated
from broker.ids import new_id
from broker.mail import AccountInvitation, Mails
from broker.provisioning.document import (
    ApplicationEntry,
    GrantEntry,
    InvitationEntry,
    OrganizationEntry,
    TokenEntry,
    UserEntry,
)
from broker.provisioning.reading import EntryLocation
from broker.provisioning.report import ChangedKey, compared, masked_key
from broker.provisioning.run import ProvisioningRun, UnprovedAddress, find_existing, given
from broker.secrets import token_hash
from broker.site import Site
from broker.trace.audit import AuditEvent, note
from config.limits import APPLICATION_TOKEN_SECONDS, FREE_MONTHLY_MESSAGES, INVITATION_SECONDS, USER_TOKEN_SECONDS
from config.mail import folded_address
from storage.keys import ApplicationKey, OrganizationKey, UserKey
from storage.records import NEW_KEY, ApplicationRecord, InvitationRecord, TokenRecord, UserRecord

_OPTIONS: Final = ("name", "methods", "any_loopback_port", "manages_organization")
_MARK: Final = "token"  # the kind of the marks of generated tokens


class PreparedPassword(msgspec.Struct, frozen=True):
    """A password, hashed before the transaction because hashing takes long. `generated`: in the clear, if not given.

    `hashed` None: an existing user has another password than the file, and keeps it.
    """

    hashed: str | None
    generated: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class AccountTables:
    """`passwords` are the new passwords, by the index of the user's entry."""

    _run: ProvisioningRun
    _passwords: Mapping[int, PreparedPassword]
    _claims: Claims
    _mails: Mails
    _site: Site

    def put_organization(self, at: EntryLocation, entry: OrganizationEntry) -> None:
        accounts = self._run.tx.accounts
        known = find_existing(
            at, entry.id, accounts.organization_by_id, "name", entry.name, accounts.organization_named(entry.name)
        )
        if known is None:
            id_ = entry.id or self._run.generate(at, entry.name, "id", new_id())
            monthly = FREE_MONTHLY_MESSAGES if entry.monthly_messages is None else entry.monthly_messages
            key = accounts.add_organization(id_, entry.name, monthly).key
            return self._run.created(at, key, entry.name)
        wanted = replace(known, **given(entry, "name", "monthly_messages"))
        if wanted != known:
            accounts.change_organization(known.key, name=wanted.name, monthly_messages=wanted.monthly_messages)
        return self._run.found(at, known.key, known.name, compared(known, wanted, ("name", "monthly_messages")))

    def put_user(self, at: EntryLocation, entry: UserEntry) -> None:
        accounts = self._run.tx.accounts
        if entry.role is not None and entry.organization is None:
            raise at.refusal("organization", "required with a role")
        if entry.reset_password and entry.password is None:
            raise at.refusal("password", "required with reset_password = true")
        password = self._passwords.get(at.index)
        namesake = accounts.user_by_email(entry.email)
        if namesake is not None and namesake.email_verified_on is None and (entry.take_over or namesake.id != entry.id):
            if not entry.take_over:
                raise UnprovedAddress(at, "email", namesake)
            key = self._take_over(at, entry, namesake, password)
            self._join(at, entry, key)
            return self._run.created(at, key, entry.email)
        known = find_existing(at, entry.id, accounts.user_by_id, "email", entry.email, namesake)
        if known is None:
            key = self._new_user(at, entry, password)
            self._join(at, entry, key)
            return self._run.created(at, key, entry.email)
        wanted = replace(known, **given(entry, "full_name"))
        if folded_address(entry.email) != folded_address(known.email):
            wanted = replace(wanted, email=entry.email)
        keys = compared(known, wanted, ("email", "full_name"))
        if keys:
            self._run.facts.append(UserProfileUpdated(known.key, known.id, self._run.now_ms))
        if password is not None and password.hashed is not None:
            wanted = replace(wanted, password_hash=password.hashed)
            keys.append(masked_key("password"))
        elif password is not None:
            self._run.notice(
                at,
                known.email,
                "has another password than the file, and keeps it: take `password` out, or add reset_password = true",
            )
        if wanted != known:
            accounts.change_user(
                known.key,
                email=wanted.email,
                full_name=wanted.full_name,
                password_hash=wanted.password_hash,
                now_ms=self._run.now_ms,
            )
        return self._run.found(at, known.key, known.email, [*keys, *self._join(at, entry, known.key)])

    def _take_over(
        self, at: EntryLocation, entry: UserEntry, former: UserRecord, password: PreparedPassword | None
    ) -> UserKey:
        """Give the address to its owner: the account that a stranger may have opened is closed (reference 4.2)."""
        other = None if entry.id is None else self._run.tx.accounts.user_by_id(entry.id)
        if other is not None and other.key != former.key:
            raise at.refusal("id", f"{other.email!r} has this id")
        id_ = entry.id or self._run.generate(at, entry.email, "id", new_id())
        if password is not None and password.generated is not None:
            self._run.generate(at, entry.email, "password", password.generated)
        user = self._claims.claim(
            self._run.issuance,
            former,
            password_hash=None if password is None else password.hashed,
            full_name=entry.full_name or "",
            id_=id_,
            email=entry.email,
        )
        self._run.notice(at, entry.email, f"is a new account: account {former.id}, which had the address, is closed")
        return user.key

    def _new_user(self, at: EntryLocation, entry: UserEntry, password: PreparedPassword | None) -> UserKey:
        id_ = entry.id or self._run.generate(at, entry.email, "id", new_id())
        if password is not None and password.generated is not None:
            self._run.generate(at, entry.email, "password", password.generated)
        return add_account(
            self._run.tx,
            entry.email,
            id_=id_,
            full_name=entry.full_name or "",
            password_hash=None if password is None else password.hashed,
            now_ms=self._run.now_ms,
        ).key

    def _join(self, at: EntryLocation, entry: UserEntry, user: UserKey) -> list[ChangedKey]:
        if entry.organization is None:
            return []
        organization = self._run.organization_named(at, entry.organization)
        known = self._run.tx.accounts.role_of(organization.key, user)
        wanted = entry.role or known or "developer"
        if wanted == known:
            return []
        self._run.tx.accounts.set_role(organization.key, user, wanted)
        return [ChangedKey(f"role in {organization.name}", known, str(wanted))]

    def put_invitation(self, at: EntryLocation, entry: InvitationEntry) -> None:
        """Invite an address by mail, unless it has an account or an unexpired invitation.

        An account whose holder has not proved the address does not count: the receiver of the mail claims it.
        """
        codes = self._run.tx.codes
        if entry.role is not None and entry.organization is None:
            raise at.refusal("organization", "required with a role")
        place = None if entry.organization is None else self._run.organization_named(at, entry.organization).key
        identity = folded_address(entry.email)
        holder = self._run.tx.accounts.user_by_email(entry.email)
        if holder is not None and holder.email_verified_on is not None:
            return self._run.found(at, identity, entry.email)
        known = codes.invitation_of(entry.email)
        base = known or InvitationRecord(entry.email, b"", None, None, 0)
        wanted = replace(base, **given(entry, "role"))
        if place is not None:
            wanted = replace(wanted, organization=place)
        if base.expires_on <= self._run.now_ms or entry.again:
            wanted = self._invite(at, wanted)
        if wanted != known:
            codes.put_invitation(wanted)
        if known is None:
            return self._run.created(at, identity, entry.email)
        keys = compared(known, wanted, ("role",))
        if wanted.organization != known.organization:
            keys.append(ChangedKey("organization", self._name_of(known.organization), entry.organization))
        if wanted.hash != known.hash:
            keys.append(masked_key("link"))
        return self._run.found(at, identity, entry.email, keys)

    def _name_of(self, organization: OrganizationKey | None) -> str | None:
        found = None if organization is None else self._run.tx.accounts.organization(organization)
        return None if found is None else found.name

    def _invite(self, at: EntryLocation, wanted: InvitationRecord) -> InvitationRecord:
        """Set a new code, queue its mail, and report the link, because a mail may not arrive."""
        code, expires_on = new_id(), self._run.now_ms + INVITATION_SECONDS * 1000
        place = None if wanted.organization is None else self._run.tx.accounts.organization(wanted.organization)
        mail = AccountInvitation(organization=place.name if place else "", code=code, expires_on=expires_on)
        if not self._run.report.dry_run:
            letter = self._mails.compose(wanted.email, mail, cause=folded_address(wanted.email))
            self._mails.add(self._run.tx, letter)
        link = f"{self._site.mailed_accounts_url}/{mail.path}?code={code}"
        self._run.generate(at, wanted.email, "link", link)
        return replace(wanted, hash=token_hash(code), expires_on=expires_on)

    def put_application(self, at: EntryLocation, entry: ApplicationEntry) -> None:
        accounts = self._run.tx.accounts
        organization = self._run.organization_named(at, entry.organization)
        if entry.id is not None:
            known = accounts.application_by_id(entry.id)
        else:
            homonyms = accounts.applications_named(entry.name)
            known = self._run.only(at, [one for one in homonyms if one.organization == organization.key])
        base = known or ApplicationRecord(
            key=NEW_KEY,
            id=entry.id or self._run.generate(at, entry.name, "id", new_id()),
            organization=organization.key,
            name=entry.name,
            secret=self._run.vault.seal(entry.secret or self._run.generate(at, entry.name, "secret", new_id())),
            methods=(),
            redirect_uris=(),
            permissions=(),
            manages_organization=True,
        )
        wanted = replace(base, organization=organization.key, **given(entry, *_OPTIONS))
        if entry.redirect_uri is not None and base.redirect_uris[:1] != (entry.redirect_uri,):
            wanted = replace(wanted, redirect_uris=(entry.redirect_uri,))
        if entry.permissions is not None:
            wanted = replace(wanted, permissions=self._requests(at, entry))
        names = {"name": "name", "methods": "methods", "redirect_uris": "redirect_uri", "permissions": "permissions"}
        keys = compared(base, wanted, names | {one: one for one in _OPTIONS[2:]})
        if wanted.organization != base.organization:
            keys.append(ChangedKey("organization", self._name_of(base.organization), organization.name))
        if entry.secret is not None and self._opened(at, base.secret) != entry.secret:
            wanted = replace(wanted, secret=self._run.vault.seal(entry.secret))
            note(self._run.tx, AuditEvent.SECRET_RENEWED, f"application {base.id}", now_ms=self._run.now_ms)
            keys.append(masked_key("secret"))
        self._run.tx.provision_marks.put(PROVISIONED, base.id, base.id)
        key = base.key
        if wanted != known:
            key = accounts.put_application(wanted).key
        if known is None:
            return self._run.created(at, key, entry.name)
        return self._run.found(at, key, known.name, keys)

    def release_applications(self) -> None:
        """Applications that the file does not name any more can be deleted (reference 27.21)."""
        marks = self._run.tx.provision_marks
        for id_ in marks.all_of(PROVISIONED):
            known = self._run.tx.accounts.application_by_id(id_)
            if known is None or not self._run.has_seen("applications", known.key):
                marks.remove(PROVISIONED, id_)

    def _requests(self, at: EntryLocation, entry: ApplicationEntry) -> tuple[Mapping[str, object], ...]:
        """The requested permissions of the application, with ids of device types, because unique names may change."""
        return tuple(
            {
                "device_type": request.device_type
                if request.device_type in NOT_TYPES
                else self._run.type_of(at, f"permissions[{index}].device_type", request.device_type).id,
                "permissions": list(request.permissions),
            }
            for index, request in enumerate(entry.permissions or ())
        )

    def _opened(self, at: EntryLocation, sealed: bytes) -> str:
        try:
            return self._run.vault.open(sealed)
        except InvalidToken as error:
            raise at.refusal("secret", "the stored secret was sealed with another key than this daemon has") from error

    def put_token(self, at: EntryLocation, entry: TokenEntry) -> None:
        """A user token counts as a sign-in through its application (reference 4.7)."""
        accounts = self._run.tx.accounts
        application = self._run.application_of(at, entry.application)
        user = None if entry.user is None else self._run.user_of(at, "user", entry.user)
        user_key = None if user is None else user.key
        if user is not None and user.disabled_on is not None:
            raise at.refusal("user", f"{user.email} is disabled")
        if user is not None and not accounts.grants(application.key, user.key):
            accounts.put_grant(sign_in_grant(application.key, user.key))
            self._granted(user.key, application.key)
        holder = f"{application.name} for {'itself' if user is None else user.email}"
        mark = f"{application.id} {'' if user is None else user.id}"
        known = self._token(entry, mark)
        if known is not None and entry.value is None:
            return self._run.found(at, known.hash, holder)
        seconds = entry.expires_in or (APPLICATION_TOKEN_SECONDS if user is None else USER_TOKEN_SECONDS)
        fresh = known is None or known.expires_on <= self._run.now_ms
        created_on = self._run.now_ms if known is None or fresh else known.created_on
        hashed = token_hash(entry.value or self._run.generate(at, holder, "value", new_id()))
        if self._run.tx.devices.token_by_hash(hashed) is not None:
            raise at.refusal("value", "a device has this token")
        wanted = TokenRecord(hashed, application.key, user_key, created_on, created_on + seconds * 1000)
        if wanted != known:
            accounts.put_token(wanted)
        if entry.value is None:
            self._run.tx.provision_marks.put(_MARK, mark, hashed.hex())
        if known is None:
            return self._run.created(at, hashed, holder)
        keys = [] if known.expires_on == wanted.expires_on else [_expiry(known, wanted)]
        if (known.application, known.user) != (wanted.application, wanted.user):
            self._run.issuance.tell_revoked((hashed,))
            keys.append(ChangedKey("application and user", self._holder(known), holder))
        return self._run.found(at, hashed, holder, keys)

    def _token(self, entry: TokenEntry, mark: str) -> TokenRecord | None:
        """The token with the entry's value; without a value the one that an earlier run generated, while it is valid.

        Tokens of sign-ins do not count: nobody but their application knows them.
        """
        accounts = self._run.tx.accounts
        if entry.value is not None:
            return accounts.token(token_hash(entry.value))
        marked = self._run.tx.provision_marks.object_of(_MARK, mark)
        known = None if marked is None else accounts.token(bytes.fromhex(marked))
        return known if known is not None and known.expires_on > self._run.now_ms else None

    def _holder(self, token: TokenRecord) -> str:
        application = self._run.tx.accounts.application(token.application)
        user = None if token.user is None else self._run.tx.accounts.user(token.user)
        return f"{application.name if application else '?'} for {'itself' if user is None else user.email}"

    def put_grant(self, at: EntryLocation, entry: GrantEntry) -> None:
        accounts = self._run.tx.accounts
        user = self._run.user_of(at, "user", entry.user)
        application = self._run.application_of(at, entry.application)
        type_ = None
        if entry.device_type not in NOT_TYPES:
            type_ = self._run.type_of(at, "device_type", entry.device_type).key
        known = next((one for one in accounts.grants(application.key, user.key) if one.device_type == type_), None)
        base = known or replace(sign_in_grant(application.key, user.key), device_type=type_)
        read, write = "READ" in entry.permissions, "WRITE" in entry.permissions
        if entry.device_type == PROFILE:  # every application may read it
            wanted, is_new = replace(base, profile=write), not base.profile
        elif entry.device_type == TRIALS:
            wanted, is_new = replace(base, trials=True), not base.trials
        else:
            wanted, is_new = replace(base, read=read, write=write), not (base.read or base.write)
        name = f"{user.email} for {application.name} on {entry.device_type}"
        identity = (user.key, application.key, entry.device_type if type_ is None else type_)
        if wanted != known:
            accounts.put_grant(wanted)
            self._granted(user.key, application.key)
        if is_new and wanted != known:
            return self._run.created(at, identity, name)
        return self._run.found(at, identity, name, compared(base, wanted, ("read", "write", "profile", "trials")))

    def _granted(self, user: UserKey, application: ApplicationKey) -> None:
        grants = tuple(self._run.tx.accounts.grants(application, user))
        self._run.facts.append(GrantsChanged(user, application, grants))


def _expiry(before: TokenRecord, after: TokenRecord) -> ChangedKey:
    times = (datetime.fromtimestamp(one.expires_on / 1000, UTC) for one in (before, after))
    return ChangedKey("expires", *(time.isoformat(timespec="seconds") for time in times))
