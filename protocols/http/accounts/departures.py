"""Sending a browser to an external identity provider."""

from collections.abc import Collection

from quart import Response, request

from broker.accounts.authorize import AuthorizationRequest
from broker.accounts.external import ExternalSignIn, Journey
from broker.accounts.external_refusals import ProviderUnavailable
from broker.accounts.hashing import TooBusy
from broker.errors import TooManyAttempts
from broker.ids import new_id
from broker.site import AccountsRoot
from protocols.http.accounts.browsers import Browsers, Place
from protocols.http.accounts.pages import redirect_to

CALLBACK = "/external/callback"


class Departures:
    def __init__(self, external: ExternalSignIn, browsers: Browsers, root: AccountsRoot) -> None:
        self._external = external
        self._browsers = browsers
        self._root = root

    @property
    def names(self) -> Collection[str | None]:
        """Of the configured providers. Nobody's is None."""
        return self._external.names

    async def leave(
        self, provider: str | None, asked: AuthorizationRequest | None, query: bytes, *, login_wanted: bool
    ) -> Response:
        """To the provider, or to the sign-in page with what is wrong. Raises NotFound when it is not configured."""
        key = self._browsers.key or new_id()
        place: Place = "go" if asked is None else "authorize"
        try:
            url = await self._external.begin(
                provider or "",
                Journey(place, query),
                browser_key=key,
                redirect_uri=f"{self._root.url}{CALLBACK}",
                address=request.remote_addr or "",
                login_wanted=login_wanted,
            )
        except (ProviderUnavailable, TooManyAttempts, TooBusy) as refused:
            return self._browsers.sign_in_page(place, query, asked=asked, refused=refused, login_wanted=login_wanted)
        answer = redirect_to(url)
        self._browsers.keep_key(answer, key)
        return answer
