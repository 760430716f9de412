"""Identity providers: the time limit, and errors of a secret's file at the start."""

from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from broker.accounts.provider_port import AuthenticationRequest, ProviderError
from config.loading import SettingsError
from config.settings import Accounts, IdentityProvider, Settings
from protocols.outbound.identity_providers import TALK_SECONDS, identity_providers
from protocols.outbound.tls import client_context

LEAVING = AuthenticationRequest("https://us.example.org/callback", "state", "nonce", "v" * 64)


def settings_for(provider: IdentityProvider) -> Settings:
    return Settings(state_dir=Path(), accounts=Accounts(providers=(provider,)))


async def say_nothing(stream: trio.SocketStream) -> None:
    async for _ in stream:
        pass


async def test_a_provider_that_does_not_answer(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, say_nothing, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        provider = IdentityProvider(name="slow", issuer=f"http://127.0.0.1:{port}", client_id="us")
        providers, started = identity_providers(settings_for(provider), client_context("")), trio.current_time()
        with pytest.raises(ProviderError, match="no answer within 10 s"):
            await providers.authorization_url(provider, LEAVING)
        assert trio.current_time() - started == pytest.approx(TALK_SECONDS)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file or directory"), (b"\xff", "not UTF-8")])
def test_a_secret_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, reason: str) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    provider = IdentityProvider(
        name="example", issuer="https://id.example.org", client_id="us", client_secret_file=str(file)
    )
    with pytest.raises(SettingsError, match=f"example: .*{reason}"):
        identity_providers(settings_for(provider), client_context(""))
