"""A client of the Model Context Protocol, with PyPI's library, in an environment of its own: the library brings another
HTTP client, which Authlib would take instead of the product's.

    python mcp_program.py '{"ways": [[way, mode], …], "url": …, "token": …, "command": […],
                             "calls": [[tool, arguments], …]}'

For each way, http or stdio, it prints one line of JSON with the revision and what the tools answered. Without a token
it signs in: then it prints a line with the address for a browser before, and reads a line with the address that the
browser came back to.
"""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata

GIVEN = json.loads(sys.argv[1])


class Storage:
    """Of tokens, and of the application, which is registered already."""

    tokens: Any = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return OAuthClientInformationFull.model_validate(GIVEN["application"])


def say(line: dict[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(line)}\n")
    sys.stdout.flush()


async def open_browser(url: str) -> None:
    say({"open": url})


async def come_back() -> Any:
    query = parse_qs(urlsplit(sys.stdin.readline().strip()).query)
    return AuthorizationCodeResult(code=query["code"][0], state=query["state"][0], iss=None)


@asynccontextmanager
async def connected(way: str, mode: str) -> AsyncIterator[Any]:
    if way == "stdio":
        command, *arguments = GIVEN["command"]
        server = StdioServerParameters(command=command, args=arguments, env={"TRUNKLINE_TOKEN": GIVEN["token"]})
        async with Client(server, mode=mode) as client:
            yield client
        return
    auth: Any = None
    headers = {"Authorization": f"Bearer {GIVEN['token']}"}
    if GIVEN["token"] is None:
        metadata = OAuthClientMetadata.model_validate(GIVEN["application"])
        auth, headers = OAuthClientProvider(GIVEN["url"], metadata, Storage(), open_browser, come_back), {}
    async with (
        httpx2.AsyncClient(headers=headers, auth=auth, timeout=30) as http,
        Client(streamable_http_client(GIVEN["url"], http_client=http), mode=mode) as client,
    ):
        yield client


async def main() -> None:
    for way, mode in GIVEN["ways"]:
        await converse(way, mode)


async def converse(way: str, mode: str) -> None:
    async with connected(way, mode) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]  # with the schemas of what they answer
        answers = []
        for tool, arguments in GIVEN["calls"]:
            result = await client.call_tool(tool, arguments)
            answers.append({"error": result.is_error, "content": result.structured_content})
        about = {"revision": client.protocol_version, "instructions": client.instructions, "tools": tools}
        say({**about, "answers": answers})


if __name__ == "__main__":
    anyio.run(main)
