"""The tables and keys of the provision file (reference 26): one class for the entries of each table.

A key that an entry leaves out is `None`: a new object gets the default or a generated value, an existing object keeps
its value. Beside the type, a key has the form of its values (broker/provisioning/forms.py) and what it is: reading,
its errors and the schema of the file come from these declarations.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from broker.accounts.applications import Method
from broker.accounts.permissions import Role
from broker.connectors.terms import ConnectorEntry
from broker.provisioning import forms
from broker.provisioning.forms import key_about

_Access = Literal["READ", "WRITE"]
_Id = Annotated[
    str, forms.ID, key_about("32 lower-case hexadecimal characters; generated, and printed once, if absent")
]
_Owner = Annotated[str, key_about("E-mail address or id of the user to whom it belongs")]
_Application = Annotated[str, key_about("Id of an application, or a name that only one application has")]
_Type = Annotated[str, key_about("Id or unique name of a device type")]
_Organization = Annotated[str, key_about("Name of the organization")]
_Permissions = Annotated[tuple[_Access, ...], forms.SOME, key_about("READ, WRITE or both")]
_TypeOrAll = Annotated[
    str,
    key_about(
        'Id or unique name of a device type, "*" for every type, "profile" for the profile, "trials" for the trials'
    ),
]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class OrganizationEntry(_Entry, frozen=True, kw_only=True):
    """An owner of device types and applications, and how many messages its devices may send in a month."""

    id: _Id | None = None
    name: Annotated[str, forms.NAME, key_about("Identifies the organization if there is no id")]
    monthly_messages: (
        Annotated[int, forms.MONTHLY, key_about("Messages of a month; -1 is unlimited. Default: 100000")] | None
    ) = None


class UserEntry(_Entry, frozen=True, kw_only=True):
    """A person with an account."""

    id: _Id | None = None
    email: Annotated[str, forms.EMAIL, key_about("Identifies the user if there is no id")]
    full_name: Annotated[str, forms.FULL_NAME, key_about("As pages and answers show it")] | None = None
    password: (
        Annotated[str, forms.PASSWORD, key_about("For a new user only; generated, and printed once, if absent")] | None
    ) = None
    reset_password: (
        Annotated[bool, key_about("Whether an existing user gets `password`, too. Default: false")] | None
    ) = None
    take_over: (
        Annotated[
            bool,
            key_about(
                "Whether an account whose address was never proved is closed, and a new one gets `password`."
                " Default: false"
            ),
        ]
        | None
    ) = None
    organization: _Organization | None = None
    role: Annotated[Role, key_about("In the organization. Default: developer")] | None = None


class InvitationEntry(_Entry, frozen=True, kw_only=True):
    """A mail with a link to open an account; nothing happens if the address has one that is proved to be its owner's,
    or an unexpired invitation."""

    email: Annotated[str, forms.MAIL_ADDRESS, key_about("Who is invited")]
    organization: _Organization | None = None
    role: Annotated[Role, key_about("In the organization. Default: developer")] | None = None
    again: Annotated[bool, key_about("A new code and mail although an invitation waits")] = False


class PermissionRequest(_Entry, frozen=True, kw_only=True):
    """Permissions that an application requests on one device type, or on all."""

    device_type: _TypeOrAll
    permissions: _Permissions


class ApplicationEntry(_Entry, frozen=True, kw_only=True):
    """A program that acts for itself or for users, with tokens of OAuth2."""

    id: _Id | None = None
    name: Annotated[str, forms.NAME, key_about("Identifies the application in its organization if there is no id")]
    organization: _Organization
    secret: (
        Annotated[str, forms.SECRET, key_about("The client secret; generated, and printed once, if absent")] | None
    ) = None
    redirect_uri: Annotated[str, forms.URI, key_about("Where a sign-in leads back to")] | None = None
    methods: Annotated[tuple[Method, ...], key_about("How it may get tokens")] | None = None
    permissions: Annotated[tuple[PermissionRequest, ...], key_about("What it asks users for")] | None = None
    any_loopback_port: (
        Annotated[bool, key_about("Whether a redirect URI of a loopback address fits with any port. Default: false")]
        | None
    ) = None
    manages_organization: (
        Annotated[bool, key_about("Whether its own tokens have an administrator's rights. Default for a new one: true")]
        | None
    ) = None


class DeviceTypeEntry(_Entry, frozen=True, kw_only=True):
    """A device type: the Manifest says what its devices send and take."""

    id: (
        Annotated[str, forms.TYPE_ID, key_about("1 to 64 characters of A-Z a-z 0-9 _ . -; generated if absent")] | None
    ) = None
    unique_name: Annotated[str, forms.UNIQUE_NAME, key_about("Identifies the device type if there is no id")]
    name: Annotated[str, forms.NAME, key_about("As people read it. Default: the unique name")] | None = None
    organization: _Organization
    description: Annotated[str, forms.DESCRIPTION, key_about("For people")] | None = None
    published: Annotated[bool, key_about("Whether other organizations see it. Default: false")] | None = None
    protected: Annotated[bool, key_about("Whether others may not see its Manifest. Default: false")] | None = None
    tags: Annotated[tuple[str, ...], forms.TAGS, key_about("Words to find it by, without commas")] | None = None
    retention_days: (
        Annotated[
            int, forms.DAYS, key_about("How long messages are kept; 0: for ever. Default: storage.retention_days")
        ]
        | None
    ) = None
    owner: Annotated[str, key_about("E-mail address or id of the user who maintains the type")] | None = None
    vid: Annotated[str, forms.PLAIN_NAME, key_about("The vendor's id")] | None = None
    in_store: Annotated[bool, key_about("Whether it is offered to users. Default: as published")] | None = None
    rsp: (
        Annotated[bool, key_about("Whether its devices register with a client certificate; needs ca. Default: false")]
        | None
    ) = None
    # In the file a name, on the wire the PEM text itself.
    ca: (
        Annotated[str, key_about("File with certificate authorities in PEM, beside this file; only with rsp")] | None
    ) = None
    # In the file a name or a table, on the wire the document itself.
    manifest: (
        Annotated[
            dict[str, Any],
            forms.FILE_OR_TABLE,
            key_about("The Manifest: a JSON file beside this file, a table, or the name of a shipped type"),
        ]
        | None
    ) = None


class DeviceEntry(_Entry, frozen=True, kw_only=True):
    """A device. It stands for the one with its id, else with its key, else with its owner and name."""

    id: _Id | None = None
    key: (
        Annotated[
            str, forms.KEY, key_about("A name for this file only: with it, the device keeps its identity if renamed")
        ]
        | None
    ) = None
    owner: _Owner
    type: _Type
    name: Annotated[str, forms.NAME, key_about("As people read it. Default: the id of the type")] | None = None
    token: Annotated[str, forms.ID, key_about("The device token; generated, and printed once, if absent")] | None = None


class TokenEntry(_Entry, frozen=True, kw_only=True):
    """An access token: of a user in an application, or of the application itself."""

    value: Annotated[str, forms.ID, key_about("The token; generated, and printed once, if absent")] | None = None
    application: _Application
    user: (
        Annotated[str, key_about("E-mail address or id; without it the token is the application's own. A sign-in, too")]
        | None
    ) = None
    expires_in: (
        Annotated[int, forms.SECONDS, key_about("Seconds that a new token lives. Default: that of the service")] | None
    ) = None


class GrantEntry(_Entry, frozen=True, kw_only=True):
    """Permissions of an application on the user's devices of a type."""

    user: Annotated[str, key_about("E-mail address or id of the user")]
    application: _Application
    device_type: _TypeOrAll
    permissions: _Permissions


class ShareEntry(_Entry, frozen=True, kw_only=True):
    """A device, and a user with whom it is shared, without an invitation."""

    device: Annotated[str, key_about("Id of the device, or the key of a device in this file")]
    with_: Annotated[str, key_about("E-mail address or id of the user")] = msgspec.field(name="with")


class PlanEntry(_Entry, frozen=True, kw_only=True):
    """A plan: the free messages of a type's devices, and the price of unlimited ones."""

    device_type: _Type
    free_messages_per_day: Annotated[int, forms.PER_DAY, key_about("For each device; -1 is unlimited")]
    paid_cost: (
        Annotated[str, forms.COST, key_about('A price such as "2.99"; without it there is no paid tier')] | None
    ) = None


class FirmwareEntry(_Entry, frozen=True, kw_only=True):
    """A firmware image. Its bytes never change: another image needs another version, type or id."""

    id: Annotated[str, forms.ID, key_about("The updateId; generated if absent")] | None = None
    device_type: _Type
    version: Annotated[str, forms.NAME, key_about("What a device reports that runs the image")]
    type: Annotated[str, forms.NAME, key_about("Default: Application")] | None = None
    # On the wire an absolute path on the machine of the daemon.
    file: Annotated[str, key_about("The image: a file beside this file, which the daemon's user can read")]


class RuleEntry(_Entry, frozen=True, kw_only=True):
    """A rule. It stands for the one with its id, else with its owner, application and name."""

    id: _Id | None = None
    owner: _Owner
    application: _Application
    name: Annotated[str, forms.PLAIN_NAME, key_about("As people read it")]
    description: Annotated[str, forms.RULE_DESCRIPTION, key_about("For people")] | None = None
    scope: (
        Annotated[
            Literal["allApplications", "thisApplication"],
            key_about("Which applications may see and change it. Default: thisApplication"),
        ]
        | None
    ) = None
    enabled: Annotated[bool, key_about("Whether it runs. Default: true")] | None = None
    rule: Annotated[dict[str, Any], key_about("Conditions and Actions, as in a call (reference 12.2)")]


class SceneEntry(_Entry, frozen=True, kw_only=True):
    """A scene. It stands for the one with its id, else with its owner, application and name."""

    id: _Id | None = None
    owner: _Owner
    application: _Application
    name: Annotated[str, key_about("As people read it")]
    description: Annotated[str, key_about("For people")] | None = None
    actions: Annotated[tuple[dict[str, Any], ...], key_about("As in a call (reference 12.5)")]


class TopicRuleEntry(_Entry, frozen=True, kw_only=True):
    """Permissions of a device, or of all devices of a type or a user, on open topics of MQTT (reference 16.6)."""

    device: Annotated[str, key_about("Id of a device; give one of device, device_type and user")] | None = None
    device_type: _Type | None = None
    user: Annotated[str, key_about("E-mail address or id of the owner of devices")] | None = None
    topic: Annotated[str, forms.TOPIC, key_about("A topic filter; %d stands for the device id")]
    publish: Annotated[bool, key_about("Whether they may publish there. Default: false")] = False
    subscribe: Annotated[bool, key_about("Whether they may subscribe there. Default: false")] = False


class SubscriptionEntry(_Entry, frozen=True, kw_only=True):
    """Messages, Actions or alarms that go to a callback or a cloud stream, with the members of a call in snake case."""

    id: _Id | None = None
    owner: _Owner
    application: _Application
    subscription_type: Annotated[Literal["httpCallback", "cloudStream"], key_about("Default: httpCallback")] | None = (
        None
    )
    message_type: Annotated[Literal["message", "action", "alarm"], key_about("What is sent. Default: message")] = (
        "message"
    )
    sdtid: Annotated[str, key_about("Only from devices of this type: id or unique name")] | None = None
    sdid: Annotated[str, key_about("Only from this device: its id")] | None = None
    ddid: Annotated[str, key_about("Only Actions to this device: its id")] | None = None
    include_shared_devices: (
        Annotated[bool, key_about("Also devices that others share with the owner. Default: false")] | None
    ) = None
    description: Annotated[str, forms.SUBSCRIPTION_DESCRIPTION, key_about("For people")] | None = None
    payload: (
        Annotated[
            Literal["messages", "notification"],
            key_about("What a notification carries. Default: subscriptions.payload"),
        ]
        | None
    ) = None
    callback_url: Annotated[str, key_about("Of a callback: where notifications go")] | None = None
    cloud_key: Annotated[str, forms.STREAM_KEY, key_about("Of a stream: the key at its provider")] | None = None
    cloud_secret: Annotated[str, forms.STREAM_SECRET, key_about("Of a stream: the secret of the key")] | None = None
    cloud_region: Annotated[str, forms.STREAM_REGION, key_about("Of a stream: its region")] | None = None
    cloud_stream_name: Annotated[str, forms.STREAM_NAME, key_about("Of a stream: its name")] | None = None


#: The tables, in the order in which they are applied: entries refer only to entries of earlier tables.
TABLES: Final[Mapping[str, type[msgspec.Struct]]] = {
    "organizations": OrganizationEntry,
    "users": UserEntry,
    "invitations": InvitationEntry,
    "device_types": DeviceTypeEntry,
    "connectors": ConnectorEntry,
    "applications": ApplicationEntry,
    "devices": DeviceEntry,
    "tokens": TokenEntry,
    "grants": GrantEntry,
    "shares": ShareEntry,
    "plans": PlanEntry,
    "firmware": FirmwareEntry,
    "rules": RuleEntry,
    "scenes": SceneEntry,
    "subscriptions": SubscriptionEntry,
    "topic_rules": TopicRuleEntry,
}
