"""/subscriptions: messages and Actions that go to callbacks and cloud streams (reference 2.7 and 11)."""

from importlib import resources
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.errors import REQUIRED, Finding, ValidationFailed
from broker.subscriptions.creation import NewSubscription
from broker.subscriptions.room import SubscriptionsRoom
from broker.subscriptions.secrets import masked
from broker.subscriptions.subscription import Subscription, SubscriptionStatus
from broker.subscriptions.subscriptions import NOT_ACTIVE, TOO_MANY
from config.limits import CALLBACK_URL_CHARACTERS, SUBSCRIPTION_DESCRIPTION_CHARACTERS
from protocols.http.calls import (
    APPLICATION,
    NO_TOKEN,
    NOTHING,
    USER_OR_APPLICATION,
    CalledBack,
    Chapter,
    Counted,
    InQuery,
    RestCall,
    RestCalls,
)
from protocols.http.openapi import samples
from protocols.http.reading import Query
from protocols.http.rest.messages import MessageObject
from protocols.http.schema import (
    Count,
    Data,
    Id,
    NumberedPage,
    Offset,
    Shape,
    Timestamp,
    TypeId,
    about,
    absent_if_none,
    one_of,
    text,
)
from storage.keys import UserKey

SUBSCRIPTION: Final = "/subscriptions/{subscriptionId}"
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
    str, Meta(max_length=128, pattern=r"^[!-~]+$", description="Id of an access key of the stream's account")
]
_Secret = Annotated[str, Meta(max_length=256, pattern=r"^[!-~]+$", description="The secret of the access key")]
_Region = Annotated[str, Meta(max_length=64, pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", description="Region of the stream")]
_Stream = Annotated[str, Meta(max_length=128, pattern=r"^[a-zA-Z0-9_.\-]+$", description="Name of the stream")]
_OfAction = "Only with `messageType` action, and required there"
_OfMessage = "Only with `messageType` message; one of `sdid` and `sdtid` at most"


class _New(Shape, kw_only=True):
    example = {"messageType": "message", "uid": samples.UID, "sdid": samples.DID, "callbackUrl": _URL}

    subscription_type: Annotated[
        Literal["httpCallback", "cloudStream", "awsKinesis"], about("awsKinesis is another word for cloudStream")
    ] = "httpCallback"
    message_type: Annotated[Literal["message", "action"], about("")]
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
    message_type: Annotated[str, one_of(("message", "action"))]
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


class _Handshake(Shape):
    example = {"aid": samples.AID, "subscriptionId": samples.SUBSCRIPTION, "nonce": samples.NONCE}

    aid: Id
    subscription_id: Id
    nonce: Annotated[Id, about("For `validate`")]


class _Query(Shape, kw_only=True):
    uid: Id
    sdtid: TypeId | UnsetType = UNSET
    sdid: Id | UnsetType = UNSET
    ddid: Id | UnsetType = UNSET


class _Notification(Shape, kw_only=True):
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
    type: Annotated[str, one_of(("message", "action"))]
    subscription_id: Id
    subscription_query: _Query
    start_date: Timestamp
    end_date: Timestamp
    data: Annotated[list[MessageObject], about("Absent with `payload` notification")] | UnsetType = UNSET


class _Validation(Shape):
    example = {"aid": samples.AID, "nonce": samples.NONCE}

    aid: Annotated[str, about("As in the handshake")]
    nonce: Annotated[str, about("As in the handshake", example=samples.NONCE)]


class _Change(Shape):
    example = {"status": "PAUSED"}

    status: Annotated[Literal["ACTIVE", "PAUSED"], about("What comes during a pause is delivered after it")]


class _NewSecret(Shape):
    example = {"webhookSecret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwW6vZ2u0g3Jk="}

    webhook_secret: Annotated[str, about("Shown in full this once")]


class _Listed(Shape):
    uid: Annotated[str, text("Only those for this user", longest=64)] | None = None
    count: Count = 100
    offset: Offset = 0


SUBSCRIPTIONS: Final = Chapter(
    "Subscriptions",
    "Messages and Actions that come to you: to an HTTPS callback, or into a cloud data stream. A new callback gets a "
    "handshake, and is active when its nonce was sent back. Each notification is signed with the client secret of the "
    "application, and, if you want, as Standard Webhooks describes. What is not answered with 2xx within 15 s is sent "
    "again for more than a day; the delivery log has every attempt. `trunkline receive` is a callback on your own "
    "machine.",
    tuple(
        (title, resources.files("protocols.http.docs").joinpath("receivers", file).read_text(encoding="utf-8"))
        for title, file in (
            ("A receiver in Python", "receiver_python.txt"),
            ("A receiver in Node.js", "receiver_node.txt"),
        )
    ),
)


class SubscriptionCalls(RestCalls):
    chapter = SUBSCRIPTIONS
    path_names = {"subscriptionId": (Annotated[Id, about("A subscription")], samples.SUBSCRIPTION)}

    def __init__(self, accounts: AccountsRoom, subscriptions: SubscriptionsRoom) -> None:
        self._users = accounts.users
        self._permissions = accounts.permissions
        self._subscriptions = subscriptions.subscriptions
        self._signers = subscriptions.signers

    async def _subscription(self, caller: Caller, subscription_id: str) -> Subscription:
        return await self._subscriptions.find(caller, subscription_id)

    @RestCall(
        "POST",
        "/subscriptions",
        tokens=USER_OR_APPLICATION,
        on=NOTHING,
        summary="Create a subscription",
        about="To all devices of a user, those of a type, one device, or to the Actions for one device. A callback is "
        "PENDING_CALLBACK_VALIDATION until it is validated, for 24 hours at most; a stream becomes active at once.",
        called_back=(
            CalledBack(
                "handshake",
                "{$request.body#/callbackUrl}",
                "The handshake",
                "Comes once, without a signature. The answer does not matter: the nonce goes to `validate`.",
                _Handshake,
            ),
            CalledBack(
                "notification",
                "{$request.body#/callbackUrl}",
                "A notification",
                "Signed by OAuth 1.0 with application id and client secret, and by Standard Webhooks once there is a "
                "secret. Answer 2xx within 15 s; 410 suspends the subscription.",
                _Notification,
            ),
        ),
        refusals={
            404: "The user, the device type or the device does not exist.",
            409: TOO_MANY,
        },
    )
    async def create(self, caller: Caller, body: _New) -> Data[SubscriptionObject]:
        created = await self._subscriptions.create(caller, _wanted(body))
        return Data(self._object(created, status=SubscriptionStatus.PENDING))

    async def _listed_user(self, caller: Caller, query: Query) -> UserKey | None:
        """The user whose subscriptions are asked for; None: every user's. Raises UserNotFound, PermissionDenied."""
        uid = query.text("uid")
        if uid is None:
            return None
        user = await self._users.find(uid, caller)
        await self._permissions.require_user(caller, user.key)
        return user.key

    @RestCall(
        "GET",
        "/subscriptions",
        tokens=APPLICATION,
        on=InQuery(_listed_user),
        summary="Subscriptions of the application",
    )
    async def listed(
        self, caller: Caller, user: UserKey | None, query: _Listed
    ) -> NumberedPage[list[SubscriptionObject]]:
        found = [] if caller.application is None else self._subscriptions.of_application(caller.application, user)
        page = [self._object(one) for one in found[query.offset : query.offset + query.count]]
        return NumberedPage(page, len(found), query.offset, len(page))

    @RestCall("GET", SUBSCRIPTION, tokens=USER_OR_APPLICATION, on=_subscription, summary="One subscription")
    async def show(self, subscription: Subscription) -> Data[SubscriptionObject]:
        return Data(self._object(subscription))

    @RestCall(
        "PUT",
        SUBSCRIPTION,
        tokens=USER_OR_APPLICATION,
        on=_subscription,
        summary="Pause or resume a subscription",
        refusals={409: f"{NOT_ACTIVE}."},
    )
    async def change(self, subscription: Subscription, body: _Change) -> Data[SubscriptionObject]:
        changed = await self._subscriptions.set_paused(subscription, paused=body.status == "PAUSED")
        return Data(self._object(changed))

    @RestCall(
        "DELETE",
        SUBSCRIPTION,
        tokens=USER_OR_APPLICATION,
        on=_subscription,
        summary="Delete a subscription",
        about="Nothing is sent any more, not even what waited. Notifications stay readable for 30 days.",
    )
    async def delete(self, subscription: Subscription) -> Data[SubscriptionObject]:
        await self._subscriptions.remove(subscription)
        return Data(self._object(subscription))

    @RestCall(
        "POST",
        f"{SUBSCRIPTION}/validate",
        tokens=NO_TOKEN,
        on=NOTHING,
        summary="Validate a subscription",
        about="With what the callback got in the handshake. Again with the same values: the same answer.",
        counted=Counted.ADDRESS,
        refusals={403: "These are not the values of the handshake.", 404: "There is no such subscription."},
    )
    async def validate(self, subscription_id: str, body: _Validation) -> Data[SubscriptionObject]:
        return Data(self._object(await self._subscriptions.validate(subscription_id, body.aid, body.nonce)))

    @RestCall(
        "POST",
        f"{SUBSCRIPTION}/secret",
        tokens=USER_OR_APPLICATION,
        on=_subscription,
        summary="Make a secret for Standard Webhooks",
        about="From now on notifications also have the headers `webhook-id`, `webhook-timestamp` and "
        "`webhook-signature`. A secret that this one replaces signs, too, for 24 hours: the header has both signatures "
        "then.",
        is_secret=True,
    )
    async def renew_secret(self, subscription: Subscription) -> Data[_NewSecret]:
        _changed, secret = await self._subscriptions.renew_secret(subscription)
        return Data(_NewSecret(secret))

    def _object(self, subscription: Subscription, *, status: SubscriptionStatus | None = None) -> SubscriptionObject:
        record, names = subscription.record, subscription.names
        stream: dict[str, Any] = {}
        if record.is_stream:
            spelling = _TYPES.index(record.spelling) - 1
            values = {
                "stream_key": record.stream_key,
                "stream_secret": masked(self._signers.opened(record.stream_secret or b"")),
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
            webhook_secret=UNSET if secret is None else masked(self._signers.opened(secret)),
            include_shared_devices=record.include_shared,
            status=status or record.status,
            created_on=record.created_on,
            modified_on=record.modified_on,
            **stream,
        )


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


def _wanted(body: _New) -> NewSubscription:
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
