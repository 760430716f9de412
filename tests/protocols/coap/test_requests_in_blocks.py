"""Requests and responses in blocks (RFC 7959)."""

import json

from trio.testing import wait_all_tasks_blocked

from broker.envelope import Message as StoredMessage
from broker.services import Services
from config.limits import COAP_BODY_BYTES
from protocols.coap.messages import CoapMessage, Code, Option, uint
from tests.factories import KITCHEN_TOKEN
from tests.protocols.coap.peers import Peer, error, option
from tests.rows import each_row

STATE = {"data": {"state": True}}


async def _stored(services: Services, mid: str) -> StoredMessage:
    found = await services.messages.history.by_mid(mid)
    assert found is not None
    return found[0]


class TestBlocks:
    BODY = json.dumps({"data": {"text": "x" * 900}}).encode()

    async def _send(self, peer: Peer, body: bytes, exponent: int, *, start: int = 0) -> CoapMessage:
        size = 16 << exponent
        last = (len(body) - 1) // size
        for number in range(start, last + 1):
            value = uint(number << 4 | (number < last) << 3 | exponent)
            part = body[number * size : (number + 1) * size]
            peer.request(Code.POST, f"v1.1/messages/{KITCHEN_TOKEN}", part, [(Option.BLOCK1, value)])
            await wait_all_tasks_blocked()
            answer = peer.take()
            if answer.code == Code.CONTINUE:
                assert option(answer, Option.BLOCK1) == value
                assert number < last
            else:
                return answer
        raise AssertionError("no final answer")

    @each_row("exponent", range(7))
    async def test_make_a_message(self, peer: Peer, services: Services, exponent: int) -> None:
        answer = await self._send(peer, self.BODY, exponent)
        assert answer.code == Code.CREATED
        stored = await _stored(services, json.loads(answer.payload)["data"]["mid"])
        assert json.loads(stored.data) == {"text": "x" * 900}
        assert peer.session().blocks.bytes_held == 0

    async def test_without_the_first_one(self, peer: Peer) -> None:
        assert error(await self._send(peer, self.BODY, 2, start=3)) == ("4.08", "Request Entity Incomplete")

    async def test_of_more_than_two_kibibytes(self, peer: Peer) -> None:
        assert error(await self._send(peer, b" " * 2100, 6)) == ("4.13", "Request body too large")
        assert peer.session().blocks.bytes_held == 0

    async def test_of_two_messages_at_once_are_kept_apart_by_their_request_tags(
        self, peer: Peer, services: Services
    ) -> None:
        """RFC 9175, 3."""
        bodies = {tag: json.dumps({"data": {"text": tag.decode() * 60}}).encode() for tag in (b"x", b"y")}
        answers = []
        for number in (0, 1):
            for tag, body in bodies.items():
                block = (Option.BLOCK1, uint(number << 4 | (number < 1) << 3 | 2))
                part = body[number * 64 : (number + 1) * 64]
                peer.request(Code.POST, f"v1.1/messages/{KITCHEN_TOKEN}", part, [block, (Option.REQUEST_TAG, tag)])
                await wait_all_tasks_blocked()
                answers.append(peer.take())
        assert [answer.code for answer in answers] == [Code.CONTINUE, Code.CONTINUE, Code.CREATED, Code.CREATED]
        stored = [await _stored(services, json.loads(answer.payload)["data"]["mid"]) for answer in answers[2:]]
        assert [json.loads(one.data)["text"] for one in stored] == ["x" * 60, "y" * 60]

    async def test_announced_as_too_large(self, peer: Peer) -> None:
        options = [(Option.BLOCK1, uint(8 | 6)), (Option.SIZE1, uint(5000))]
        peer.request(Code.POST, f"v1.1/messages/{KITCHEN_TOKEN}", b" " * 1024, options)
        await wait_all_tasks_blocked()
        answer = peer.take()
        assert error(answer)[0] == "4.13"
        assert option(answer, Option.SIZE1) == uint(COAP_BODY_BYTES)

    async def test_of_a_request_with_an_invalid_token_are_not_held(self, peer: Peer) -> None:
        peer.request(Code.POST, "v1.1/messages/nobody", b" " * 1024, [(Option.BLOCK1, uint(8 | 6))])
        await wait_all_tasks_blocked()
        assert error(peer.take())[0] == "4.01"
        assert peer.session().blocks.bytes_held == 0

    async def test_of_the_response(self, peer: Peer, services: Services) -> None:
        """A client with room for 16 bytes fetches the rest; the message is stored once."""
        body, number, more = b"", 0, True
        while more:
            payload = json.dumps(STATE).encode() if number == 0 else b""
            options = [(Option.BLOCK2, uint(number << 4))]
            peer.request(Code.POST, f"v1.1/messages/{KITCHEN_TOKEN}", payload, options)
            await wait_all_tasks_blocked()
            answer = peer.take()
            body += answer.payload
            more = bool(int.from_bytes(option(answer, Option.BLOCK2) or b"", "big") & 8)
            number += 1
        assert (await _stored(services, json.loads(body)["data"]["mid"])).data == '{"state":true}'
        assert services.messages.ingest.statistics().messages == 1

    async def test_of_a_response_that_is_not_held(self, peer: Peer) -> None:
        peer.request(Code.POST, f"v1.1/messages/{KITCHEN_TOKEN}", b"", [(Option.BLOCK2, uint(1 << 4))])
        await wait_all_tasks_blocked()
        assert error(peer.take())[0] == "4.00"
