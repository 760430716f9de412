"""Redirecting a browser to an external identity provider."""

from collections.abc import Collection

from quart import Response

from broker.accounts.authorize import AuthorizationRequest
from broker.accounts.external import ExternalSignIn, NextPage
from broker.accounts.external_refusals import ProviderUnavailable
from broker.accounts.hashing import TooBusy
from broker.errors import TooManyAttempts
from broker.ids import new_id
from broker.site import AccountsRoot
from protocols.http.accounts.browsers import Browsers, remote_address
from protocols.http.accounts.pages import redirect

CALLBACK = "/external/callback"


class ProviderRedirects:
    def __init__(self, external: ExternalSignIn, browsers: Browsers, root: AccountsRoot) -> None:
        self._external = external
        self._browsers = browsers
        self._root = root

    @property
    def names(self) -> Collection[str | None]:
        """The names of the configured providers. None, as for an absent `account_type`, is never among them."""
        return self._external.names

    async def redirect(
        self, provider: str | None, asked: AuthorizationRequest | None, query: bytes, *, login_wanted: bool
    ) -> Response:
        """A redirect to the provider, or the sign-in page with the error. Raises NotFound: no such provider."""
        key = self._browsers.key or new_id()
        try:
            url = await self._external.begin(
                provider or "",
                NextPage("go" if asked is None else "authorize", query),
                browser_key=key,
                redirect_uri=f"{self._root.url}{CALLBACK}",
                address=remote_address(),
                login_wanted=login_wanted,
            )
        except (ProviderUnavailable, TooManyAttempts, TooBusy) as refused:
            return self._browsers.sign_in_page(query, asked=asked, refused=refused, login_wanted=login_wanted)
        answer = redirect(url)
        self._browsers.keep_key(answer, key)
        return answer
