"""/subscriptions: messages and Actions that go to callbacks and cloud streams (reference 2.7 and 11)."""

from importlib import resources
from typing import Annotated, Final

from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.subscriptions.creation import StreamsNotInstalled
from broker.subscriptions.room import SubscriptionsRoom
from broker.subscriptions.storing import TOO_MANY
from broker.subscriptions.subscription import Subscription, SubscriptionStatus
from broker.subscriptions.subscriptions import NOT_ACTIVE
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
from protocols.http.rest.subscription_shapes import (
    ListedQuery,
    NewSecret,
    NewSubscriptionBody,
    NotificationObject,
    SubscriptionChange,
    SubscriptionHandshake,
    SubscriptionObject,
    Validation,
    subscription_object,
    wanted_subscription,
)
from protocols.http.schema import Data, Id, NumberedPage, about
from storage.keys import UserKey

SUBSCRIPTION: Final = "/subscriptions/{subscriptionId}"
SUBSCRIPTIONS: Final = Chapter(
    "Subscriptions",
    "Messages, Actions and alarms that come to you: to an HTTPS callback, or into a cloud data stream. A new callback "
    "gets a handshake, and is active when its nonce was sent back. Each notification is signed with the client secret "
    "of the application, and, if you want, as Standard Webhooks describes. A notification without a 2xx answer within "
    "15 s is sent again for more than a day; the delivery log has every attempt. `trunkline receive` is a callback on "
    "your own machine.",
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
        about="To all devices of a user, those of a type, one device, the Actions for one device, or the alarms of a "
        "user. A callback is PENDING_CALLBACK_VALIDATION until it is validated, for 24 hours at most; a stream becomes "
        "active at once.",
        called_back=(
            CalledBack(
                "handshake",
                "{$request.body#/callbackUrl}",
                "The handshake",
                "Comes once, without a signature. The answer does not matter: the nonce goes to `validate`.",
                SubscriptionHandshake,
            ),
            CalledBack(
                "notification",
                "{$request.body#/callbackUrl}",
                "A notification",
                "Signed by OAuth 1.0 with application id and client secret, and by Standard Webhooks once there is a "
                "secret. Answer 2xx within 15 s; 410 suspends the subscription.",
                NotificationObject,
            ),
        ),
        refusals={
            404: "The user, the device type or the device does not exist.",
            409: TOO_MANY,
            501: StreamsNotInstalled.template,
        },
    )
    async def create(self, caller: Caller, body: NewSubscriptionBody) -> Data[SubscriptionObject]:
        created = await self._subscriptions.create(caller, wanted_subscription(body))
        return Data(subscription_object(created, self._signers, status=SubscriptionStatus.PENDING))

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
        self, caller: Caller, user: UserKey | None, query: ListedQuery
    ) -> NumberedPage[list[SubscriptionObject]]:
        found = [] if caller.application is None else self._subscriptions.of_application(caller.application, user)
        page = [subscription_object(one, self._signers) for one in found[query.offset : query.offset + query.count]]
        return NumberedPage(page, len(found), query.offset, len(page))

    @RestCall("GET", SUBSCRIPTION, tokens=USER_OR_APPLICATION, on=_subscription, summary="One subscription")
    async def show(self, subscription: Subscription) -> Data[SubscriptionObject]:
        return Data(subscription_object(subscription, self._signers))

    @RestCall(
        "PUT",
        SUBSCRIPTION,
        tokens=USER_OR_APPLICATION,
        on=_subscription,
        summary="Pause or resume a subscription",
        refusals={409: f"{NOT_ACTIVE}."},
    )
    async def change(self, subscription: Subscription, body: SubscriptionChange) -> Data[SubscriptionObject]:
        changed = await self._subscriptions.set_paused(subscription, paused=body.status == "PAUSED")
        return Data(subscription_object(changed, self._signers))

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
        return Data(subscription_object(subscription, self._signers))

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
    async def validate(self, subscription_id: str, body: Validation) -> Data[SubscriptionObject]:
        validated = await self._subscriptions.validate(subscription_id, body.aid, body.nonce)
        return Data(subscription_object(validated, self._signers))

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
    async def renew_secret(self, subscription: Subscription) -> Data[NewSecret]:
        _changed, secret = await self._subscriptions.renew_secret(subscription)
        return Data(NewSecret(secret))
