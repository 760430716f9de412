"""Builds the accounts capability: tokens, permissions, users, sign-in and the OAuth2 endpoints."""

import msgspec

from broker.accounts.application_ends import ApplicationEnds
from broker.accounts.applications import Applications
from broker.accounts.authorize import Authorize
from broker.accounts.claims import Claims
from broker.accounts.confirmations import Confirmations
from broker.accounts.console import Console
from broker.accounts.device_codes import DeviceCodes
from broker.accounts.disabling import Disabling
from broker.accounts.external import ExternalSignIn
from broker.accounts.granted import GrantedApplications
from broker.accounts.grants import DeviceCodeTerms
from broker.accounts.hashing import Hashing
from broker.accounts.invitations import AccountInvitations
from broker.accounts.issuance import Lifetimes
from broker.accounts.one_time_codes import FactorCheck
from broker.accounts.open_sessions import OpenSessions
from broker.accounts.openid import SigningKeys
from broker.accounts.operators import Operators
from broker.accounts.organizations import Organizations
from broker.accounts.own_account import OwnAccount
from broker.accounts.permissions import Permissions
from broker.accounts.properties import ApplicationProperties
from broker.accounts.provider_port import Providers
from broker.accounts.resets import PasswordResets
from broker.accounts.second_factors import SecondFactors
from broker.accounts.sessions import FormKeys, Sessions
from broker.accounts.sign_up import SignUp
from broker.accounts.token_endpoints import TokenEndpoints
from broker.accounts.tokens import Tokens
from broker.accounts.userinfo import Userinfo
from broker.accounts.users import Users, report_same_addresses
from broker.accounts.wrong_tokens import WrongTokens
from broker.core import Core
from broker.mail import Mails
from broker.secrets import Passwords


class AccountsRoom(msgspec.Struct, frozen=True):
    tokens: Tokens
    permissions: Permissions
    users: Users
    own_account: OwnAccount
    applications: Applications
    application_ends: ApplicationEnds
    granted: GrantedApplications
    properties: ApplicationProperties
    passwords: Passwords
    authorize: Authorize
    signing_keys: SigningKeys
    userinfo: Userinfo
    grants: TokenEndpoints
    device_codes: DeviceCodes
    sessions: Sessions
    form_keys: FormKeys
    open_sessions: OpenSessions
    second_factors: SecondFactors
    sign_up: SignUp
    invitations: AccountInvitations
    resets: PasswordResets
    claims: Claims
    confirmations: Confirmations
    disabling: Disabling
    external: ExternalSignIn
    console: Console
    organizations: Organizations
    operators: Operators


async def open_accounts(core: Core, mails: Mails, providers: Providers | None) -> AccountsRoom:
    """Without `providers`, signing in with an external identity provider is not possible."""
    database, clock, vault, settings = core.database, core.clock, core.vault, core.settings.accounts
    passwords = Passwords.taking(settings.password_memory_mib)
    hashing = Hashing(passwords)
    factor_check = FactorCheck(vault, settings)
    limits = core.settings.limits
    wrong = WrongTokens(clock, limit=limits.calls_per_address if limits.rate_limits == "on" else None)
    tokens = Tokens(database, clock, core.router, core.news, Lifetimes.of(settings), wrong)
    permissions = Permissions(database, core.router)
    sessions = Sessions(database, clock, hashing, vault, factor_check)
    await report_same_addresses(database)
    claims = Claims(database)
    signing_keys = SigningKeys(database, vault, clock)
    core.life.worker("token expiry", tokens.end_expired_forever)
    return AccountsRoom(
        tokens=tokens,
        permissions=permissions,
        users=Users(database),
        own_account=OwnAccount(database, clock, core.audit),
        applications=Applications(database),
        application_ends=ApplicationEnds(database, tokens, vault),
        granted=GrantedApplications(database, tokens, permissions),
        properties=ApplicationProperties(database),
        passwords=passwords,
        authorize=Authorize(database, tokens, clock, signing_keys),
        signing_keys=signing_keys,
        userinfo=Userinfo(database),
        grants=TokenEndpoints(tokens, vault, signing_keys, DeviceCodeTerms.of(settings, core.site.accounts)),
        device_codes=DeviceCodes(database, clock),
        sessions=sessions,
        form_keys=FormKeys(vault),
        open_sessions=OpenSessions(database, clock),
        second_factors=SecondFactors(database, clock, vault, factor_check),
        sign_up=SignUp(database, clock, hashing, settings),
        invitations=AccountInvitations(database, clock, tokens, hashing, claims),
        resets=PasswordResets(database, clock, tokens, hashing, mails, claims, settings),
        claims=claims,
        confirmations=Confirmations(database, clock, vault, mails),
        disabling=Disabling(tokens),
        external=ExternalSignIn(database, vault, clock, tokens, claims, settings, providers),
        console=Console(database, clock, core.router, vault, tokens, sessions),
        organizations=Organizations(database, clock, vault),
        operators=Operators(database, core.settings.console.operators),
    )
