"""Cloud streams: against moto's server, and the table of failures (reference 11.3)."""

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from broker.envelope import Message
from broker.subscriptions.port import StreamFailed, StreamRejected, StreamTarget
from protocols.outbound import streams
from protocols.outbound.streams import CloudStreams, boto_connect
from storage.keys import Milliseconds, Position
from tests.properties import in_ci
from tests.rows import each_row
from tests.served import served

pytestmark = pytest.mark.slow


TARGET = StreamTarget("lights", "eu-west-1", "key", "secret")


def message(position: int, device: str = "11" * 16) -> Message:
    now = Milliseconds(position)
    return Message(Position(position), f"{position:032x}", device, "dt1", "a" * 32, "b" * 32, now, now, 1, "{}")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from moto.moto_server.werkzeug_app import (  # which takes a second
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    application = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler)
    with served(server):
        yield f"http://127.0.0.1:{server.server_port}"


@in_ci
async def test_records_arrive_in_order_and_a_stream_that_is_missing_is_rejected(endpoint: str) -> None:
    import boto3

    kinesis = boto3.client(
        "kinesis",
        region_name="eu-west-1",
        endpoint_url=endpoint,
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )
    kinesis.create_stream(StreamName="lights", ShardCount=1)
    cloud = CloudStreams(boto_connect(endpoint))
    await cloud.put(TARGET, [message(position) for position in range(1, 501)])
    shard = kinesis.describe_stream(StreamName="lights")["StreamDescription"]["Shards"][0]["ShardId"]
    begin = kinesis.get_shard_iterator(StreamName="lights", ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    records = kinesis.get_records(ShardIterator=begin["ShardIterator"], Limit=1_000)["Records"]
    assert [record["Data"] for record in records] == [
        b'{"mid":"%032x","data":{},"ts":%d,"sdtid":"dt1","cts":%d,"uid":"%s","mv":1,"sdid":"%s"}'
        % (position, position, position, b"a" * 32, b"11" * 16)
        for position in range(1, 501)
    ]
    assert {record["PartitionKey"] for record in records} == {"11" * 16}
    with pytest.raises(StreamRejected, match="ResourceNotFoundException"):
        await cloud.put(StreamTarget("none", "eu-west-1", "key", "secret"), [message(1)])
    kinesis.close()
    cloud.close()


class Client:
    """Answers with one outcome after the other: a set of refused indexes, or an error."""

    def __init__(self, *outcomes: "set[int] | Exception") -> None:
        self.outcomes = list(outcomes)
        self.sent: list[list[int]] = []

    def close(self) -> None:
        self.outcomes.clear()

    def put_records(self, *, StreamName: str, Records: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        assert StreamName == TARGET.name
        self.sent.append([int(one["Data"][8:40], 16) for one in Records])
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return {
            "Records": [
                {"ErrorCode": "ProvisionedThroughputExceededException"} if index in outcome else {"SequenceNumber": "1"}
                for index in range(len(Records))
            ]
        }


def refusal(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "PutRecords")


@each_row(
    ("error", "kind"),
    [
        (refusal("ResourceNotFoundException"), StreamRejected),
        (refusal("AccessDeniedException"), StreamRejected),
        (refusal("UnrecognizedClientException"), StreamRejected),
        (refusal("InvalidSignatureException"), StreamRejected),
        (refusal("ValidationException"), StreamRejected),
        (refusal("ProvisionedThroughputExceededException"), StreamFailed),
        (refusal("InternalFailure"), StreamFailed),
        (refusal("ServiceUnavailable"), StreamFailed),
        (EndpointConnectionError(endpoint_url="https://stream.example.org"), StreamFailed),
    ],
)
async def test_which_errors_are_final(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        await CloudStreams(lambda _target: Client(error)).put(TARGET, [message(1)])


async def test_what_was_not_taken_is_written_again_with_later_records_of_its_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_PARTIAL_PAUSES", (0, 0, 0))
    client = Client({1}, {0}, set())
    cloud = CloudStreams(lambda _target: client)
    await cloud.put(TARGET, [message(1, "a"), message(2, "b"), message(3, "a"), message(4, "b")])
    assert client.sent == [[1, 2, 3, 4], [2, 4], [2, 4]]
    with pytest.raises(StreamFailed, match="1 records were not taken"):
        await CloudStreams(lambda _target: Client(*[{0}] * 4)).put(TARGET, [message(1)])
