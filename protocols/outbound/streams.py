"""Cloud streams through boto3's client of Kinesis, in worker threads (reference 11.3).

boto3 comes with the extra `streams`. Without it there is no port, and the delivery log says so.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from threading import Lock
from typing import Any, Final, Protocol

import trio

from broker.envelope import Action
from broker.subscriptions.port import Entry, StreamFailed, StreamRejected, StreamTarget
from config.settings import Settings
from protocols.rendering import action_entry, message_entry

_CLIENTS: Final = 100
_THREADS: Final = 8
_SECONDS: Final = 15
_PARTIAL_PAUSES: Final = (0.1, 0.3, 1.0)
#: Errors of the Bad Request class that waiting does not cure; all others are tried again.
_REJECTIONS: Final = frozenset(
    {
        "AccessDeniedException",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidArgumentException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "KMSAccessDeniedException",
        "KMSDisabledException",
        "KMSInvalidStateException",
        "KMSNotFoundException",
        "KMSOptInRequired",
        "MissingAuthenticationTokenException",
        "OptInRequired",
        "ResourceNotFoundException",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
        "ValidationException",
    }
)


class KinesisClient(Protocol):
    """The methods of boto3's client that are used."""

    def put_records(self, *, StreamName: str, Records: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803 - theirs
        """Raises botocore's ClientError and BotoCoreError."""

    def close(self) -> None: ...


Connect = Callable[[StreamTarget], KinesisClient]


def cloud_streams(settings: Settings) -> "CloudStreams | None":
    """None when boto3 is not installed."""
    if find_spec("boto3") is None:
        return None
    return CloudStreams(boto_connect(settings.outbound.stream_endpoint))


def boto_connect(endpoint: str) -> Connect:
    """Clients by boto3. `endpoint` is a template with `{region}`; empty: the provider's own."""

    def connect(target: StreamTarget) -> KinesisClient:
        import boto3  # noqa: PLC0415 - an extra; importing it takes a third of a second
        from botocore.config import Config  # noqa: PLC0415

        client: KinesisClient = boto3.session.Session().client(
            "kinesis",
            region_name=target.region,
            aws_access_key_id=target.key,
            aws_secret_access_key=target.secret,
            endpoint_url=endpoint.replace("{region}", target.region) or None,
            config=Config(
                connect_timeout=_SECONDS,
                read_timeout=_SECONDS,
                retries={"total_max_attempts": 1},
                max_pool_connections=_THREADS,
            ),
        )
        return client

    return connect


class CloudStreams:
    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._clients: OrderedDict[StreamTarget, KinesisClient] = OrderedDict()
        self._lock = Lock()
        self._threads = trio.CapacityLimiter(_THREADS)

    async def put(self, target: StreamTarget, entries: Sequence[Entry]) -> None:
        """Write a record for each entry. Refused records are written again, three times.

        Together with a record that was not taken, the later ones of its device are written again: so the order of each
        device is kept, and some records come twice.
        """
        records = [_record(entry) for entry in entries]
        for pause in (*_PARTIAL_PAUSES, None):
            answer = await self._written(target, records)
            refused = [index for index, one in enumerate(answer["Records"]) if one.get("ErrorCode")]
            if not refused:
                return
            errors = {answer["Records"][index]["ErrorCode"] for index in refused}
            records = _again(records, refused)
            if pause is None:
                raise StreamFailed(f"{len(refused)} records were not taken: {', '.join(sorted(errors))}")
            await trio.sleep(pause)

    async def _written(self, target: StreamTarget, records: list[dict[str, Any]]) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra

        def write() -> dict[str, Any]:
            return self._client(target).put_records(StreamName=target.name, Records=records)

        try:
            return await trio.to_thread.run_sync(write, limiter=self._threads, abandon_on_cancel=True)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            text = _one_line(error)
            raise (StreamRejected if code in _REJECTIONS else StreamFailed)(text) from error
        except (BotoCoreError, ValueError) as error:
            raise StreamFailed(_one_line(error) or type(error).__name__) from error

    def _client(self, target: StreamTarget) -> KinesisClient:
        """The client of a stream, for worker threads. A forgotten client may still be in use in another thread."""
        with self._lock:
            client = self._clients.get(target)
            if client is None:
                client = self._clients[target] = self._connect(target)
                if len(self._clients) > _CLIENTS:
                    self._clients.popitem(last=False)
            return client

    def close(self) -> None:
        """Close the connections of all clients."""
        while self._clients:
            self._clients.popitem()[1].close()


def _record(entry: Entry) -> dict[str, Any]:
    data = action_entry(entry) if isinstance(entry, Action) else message_entry(entry)
    return {"Data": data, "PartitionKey": entry.sdid}


def _again(records: list[dict[str, Any]], refused: Sequence[int]) -> list[dict[str, Any]]:
    """The refused records, and later ones of the same devices."""
    first: dict[str, int] = {}
    for index in refused:
        first.setdefault(records[index]["PartitionKey"], index)
    return [one for index, one in enumerate(records) if index >= first.get(one["PartitionKey"], len(records))]


def _one_line(error: BaseException) -> str:
    return "".join(character if character.isprintable() else " " for character in str(error))[:200]
