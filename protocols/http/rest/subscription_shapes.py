"""Bodies and answers of the calls of subscriptions (reference 11.1 to 11.3)."""

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from broker.errors import REQUIRED, Finding, ValidationFailed
from broker.subscriptions.addresses import STREAM_KEY, STREAM_NAME, STREAM_REGION, STREAM_SECRET
from broker.subscriptions.creation import NewSubscription
from broker.subscriptions.secrets import Signers, masked
from broker.subscriptions.subscription import Subscription, SubscriptionStatus
from config.limits import CALLBACK_URL_CHARACTERS, SUBSCRIPTION_DESCRIPTION_CHARACTERS
from protocols.http.openapi import samples
from protocols.http.rest.messages import MessageObject
from protocols.http.schema import (
    Count,
    Id,
    Offset,
    Shape,
    Timestamp,
    TypeId,
    about,
    absent_if_none,
    one_of,
    text,
)

_TYPES: Final = ("httpCallback", "cloudStream", "awsKinesis")
_STATUSES: Final = tuple(status.value for status in SubscriptionStatus)
_URL: Final = "https://app.example.org/trunkline?from=lights"
_EXAMPLE: Final[dict[str, Any]] = {
    "id": samples.SUBSCRIPTION,
    "aid": samples.AID,
    "messageType": "message",
    "uid": samples.UID,
    "sdid": samples.DID,
    "subscriptionType": "httpCallback",
    "callbackUrl": _URL,
    "payload": "messages",
    "includeSharedDevices": False,
    "status": "PENDING_CALLBACK_VALIDATION",
    "createdOn": samples.TS,
    "modifiedOn": samples.TS,
}
#: The members of a stream in the two spellings (reference 11.1).
_SPELLINGS: Final = {
    "stream_key": ("cloudKey", "awsKey"),
    "stream_secret": ("cloudSecret", "awsSecret"),
    "stream_region": ("cloudRegion", "awsRegion"),
    "stream_name": ("cloudStreamName", "awsKinesisStreamName"),
}

_Key = Annotated[
    str,
    Meta(max_length=STREAM_KEY[1], pattern=STREAM_KEY[0], description="Id of an access key of the stream"),
]
_Secret = Annotated[
    str, Meta(max_length=STREAM_SECRET[1], pattern=STREAM_SECRET[0], description="The secret of the access key")
]
_Region = Annotated[
    str, Meta(max_length=STREAM_REGION[1], pattern=STREAM_REGION[0], description="Region of the stream")
]
_Stream = Annotated[str, Meta(max_length=STREAM_NAME[1], pattern=STREAM_NAME[0], description="Name of the stream")]
_OfAction = "Only with `messageType` action, and required there"
_OfMessage = "Only with `messageType` message; one of `sdid` and `sdtid` at most"


class NewSubscriptionBody(Shape, kw_only=True):
    example = {"messageType": "message", "uid": samples.UID, "sdid": samples.DID, "callbackUrl": _URL}

    subscription_type: Annotated[
        Literal["httpCallback", "cloudStream", "awsKinesis"], about("awsKinesis is another word for cloudStream")
    ] = "httpCallback"
    message_type: Annotated[
        Literal["message", "action", "alarm"],
        about("alarm: each change of an alarm of a rule of the application"),
    ]
    uid: Annotated[str, text("Whose devices; a user id, or self", longest=64)]
    sdtid: Annotated[TypeId, about(f"All devices of this type. {_OfMessage}")] | None = None
    sdid: Annotated[Id, about(f"One device. {_OfMessage}")] | None = None
    ddid: Annotated[Id, about(f"The device to which Actions go. {_OfAction}")] | None = None
    description: (
        Annotated[str, Meta(max_length=SUBSCRIPTION_DESCRIPTION_CHARACTERS, description="For people")] | None
    ) = None
    include_shared_devices: Annotated[bool, about("Also devices that are shared with the user")] = False
    payload: (
        Annotated[
            Literal["messages", "notification"], about("Whether notifications carry their messages. Default: a setting")
        ]
        | None
    ) = None
    callback_url: (
        Annotated[
            str,
            Meta(
                max_length=CALLBACK_URL_CHARACTERS,
                description="HTTPS; scheme and top two domain levels as in the main redirect URI of the application",
            ),
        ]
        | None
    ) = None
    cloud_key: _Key | None = None
    cloud_secret: _Secret | None = None
    cloud_region: _Region | None = None
    cloud_stream_name: _Stream | None = None
    aws_key: _Key | None = None
    aws_secret: _Secret | None = None
    aws_region: _Region | None = None
    aws_kinesis_stream_name: _Stream | None = None


class SubscriptionObject(Shape, kw_only=True):
    shape = "Subscription"
    example = _EXAMPLE

    id: Id
    aid: Id
    message_type: Annotated[str, one_of(("message", "action", "alarm"))]
    uid: Id
    sdtid: TypeId | UnsetType = UNSET
    sdid: Id | UnsetType = UNSET
    ddid: Id | UnsetType = UNSET
    description: str | UnsetType = UNSET
    subscription_type: Annotated[str, one_of(_TYPES)]
    callback_url: str | UnsetType = UNSET
    cloud_key: str | UnsetType = UNSET
    cloud_secret: Annotated[str, about("Masked")] | UnsetType = UNSET
    cloud_region: str | UnsetType = UNSET
    cloud_stream_name: str | UnsetType = UNSET
    aws_key: str | UnsetType = UNSET
    aws_secret: Annotated[str, about("Masked")] | UnsetType = UNSET
    aws_region: str | UnsetType = UNSET
    aws_kinesis_stream_name: str | UnsetType = UNSET
    payload: Annotated[str, one_of(("messages", "notification"))]
    webhook_secret: Annotated[str, about("Masked. Absent until it was made")] | UnsetType = UNSET
    include_shared_devices: bool
    status: Annotated[str, one_of(_STATUSES)]
    created_on: Timestamp
    modified_on: Timestamp


class SubscriptionHandshake(Shape):
    example = {"aid": samples.AID, "subscriptionId": samples.SUBSCRIPTION, "nonce": samples.NONCE}

    aid: Id
    subscription_id: Id
    nonce: Annotated[Id, about("For `validate`")]


class _Query(Shape, kw_only=True):
    uid: Id
    sdtid: TypeId | UnsetType = UNSET
    sdid: Id | UnsetType = UNSET
    ddid: Id | UnsetType = UNSET


class NotificationObject(Shape, kw_only=True):
    example = {
        "id": samples.NOTIFICATION,
        "ts": samples.CTS,
        "type": "message",
        "subscriptionId": samples.SUBSCRIPTION,
        "subscriptionQuery": {"uid": samples.UID, "sdid": samples.DID},
        "startDate": samples.TS,
        "endDate": samples.TS,
        "data": [MessageObject.example],
    }

    id: Id
    ts: Timestamp
    type: Annotated[str, one_of(("message", "action", "alarm"))]
    subscription_id: Id
    subscription_query: _Query
    start_date: Timestamp
    end_date: Timestamp
    data: (
        Annotated[list[MessageObject], about("Absent with `payload` notification. Of type alarm: the alarm as it was")]
        | UnsetType
    ) = UNSET


class Validation(Shape):
    example = {"aid": samples.AID, "nonce": samples.NONCE}

    aid: Annotated[str, about("As in the handshake")]
    nonce: Annotated[str, about("As in the handshake", example=samples.NONCE)]


class SubscriptionChange(Shape):
    example = {"status": "PAUSED"}

    status: Annotated[Literal["ACTIVE", "PAUSED"], about("What comes during a pause is delivered after it")]


class NewSecret(Shape):
    example = {"webhookSecret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwW6vZ2u0g3Jk="}

    webhook_secret: Annotated[str, about("Shown in full this once")]


class ListedQuery(Shape):
    uid: Annotated[str, text("Only those for this user", longest=64)] | None = None
    count: Count = 100
    offset: Offset = 0


#: Names of fields by the names on the wire.
_FIELDS: Final = {
    "cloudKey": "cloud_key",
    "awsKey": "aws_key",
    "cloudSecret": "cloud_secret",
    "awsSecret": "aws_secret",
    "cloudRegion": "cloud_region",
    "awsRegion": "aws_region",
    "cloudStreamName": "cloud_stream_name",
    "awsKinesisStreamName": "aws_kinesis_stream_name",
}


def subscription_object(
    subscription: Subscription, signers: Signers, *, status: SubscriptionStatus | None = None
) -> SubscriptionObject:
    """`status` is shown instead of the subscription's own."""
    record, names = subscription.record, subscription.names
    stream: dict[str, Any] = {}
    if record.is_stream:
        spelling = _TYPES.index(record.spelling) - 1
        values = {
            "stream_key": record.stream_key,
            "stream_secret": masked(signers.opened(record.stream_secret or b"")),
            "stream_region": record.stream_region,
            "stream_name": record.stream_name,
        }
        stream = {_FIELDS[_SPELLINGS[name][spelling]]: value for name, value in values.items()}
    secret = record.webhook_secret
    return SubscriptionObject(
        id=record.id,
        aid=names.application_id,
        message_type=record.message_type,
        uid=names.user_id,
        sdtid=absent_if_none(names.device_type_id),
        sdid=absent_if_none(names.source_id),
        ddid=absent_if_none(names.destination_id),
        description=absent_if_none(record.description),
        subscription_type=record.spelling,
        callback_url=absent_if_none(record.callback_url),
        payload=record.payload,
        webhook_secret=UNSET if secret is None else masked(signers.opened(secret)),
        include_shared_devices=record.include_shared,
        status=status or record.status,
        created_on=record.created_on,
        modified_on=record.modified_on,
        **stream,
    )


def wanted_subscription(body: NewSubscriptionBody) -> NewSubscription:
    """Raises ValidationFailed for members of a stream that are missing."""
    is_stream = body.subscription_type != "httpCallback"
    stream: dict[str, str | None] = {}
    if is_stream:
        spelling = _TYPES.index(body.subscription_type) - 1
        for name, spelled in _SPELLINGS.items():
            values = (getattr(body, _FIELDS[one]) for one in spelled)
            stream[name] = next((value for value in values if value is not None), None)
        missing = [_SPELLINGS[name][spelling] for name, value in stream.items() if value is None]
        if missing:
            raise ValidationFailed(tuple(Finding(name, (REQUIRED,)) for name in missing))
    return NewSubscription(
        spelling=body.subscription_type,
        message_type=body.message_type,
        uid=body.uid,
        sdtid=body.sdtid,
        sdid=body.sdid,
        ddid=body.ddid,
        description=body.description,
        include_shared=body.include_shared_devices,
        payload=body.payload,
        callback_url=None if is_stream else body.callback_url,
        **stream,
    )
