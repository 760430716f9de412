"""The ways out of the machine that the workers of the broker use, each behind its port."""

import ssl
from typing import TypedDict

from broker.alarms.ways import AlarmWays
from broker.cluster.leases import LeaseName, Leases
from broker.connectors.port import ThirdParty
from broker.forwarding.port import Upstreams
from broker.mail import MailTransport
from broker.rules.sending.requests import RuleRequests
from broker.subscriptions.port import Callbacks, Streams
from config.settings import Settings
from protocols.outbound.alarms import alarm_ways
from protocols.outbound.callbacks import http_callbacks
from protocols.outbound.connectors import third_party
from protocols.outbound.forwarding import upstreams
from protocols.outbound.leased import (
    LeasedAlarmWays,
    LeasedCallbacks,
    LeasedMails,
    LeasedRuleRequests,
    LeasedStreams,
    LeasedThirdParty,
    LeasedUpstreams,
)
from protocols.outbound.mail import mail_transport
from protocols.outbound.rules import rule_requests
from protocols.outbound.streams import cloud_streams


class WaysOut(TypedDict):
    mail_transport: MailTransport | None
    third_party: ThirdParty | None  # None: third parties are not asked
    rule_requests: RuleRequests
    callbacks: Callbacks
    streams: Streams | None
    alarm_ways: AlarmWays
    upstreams: Upstreams


def ways_out_of(settings: Settings, tls: ssl.SSLContext) -> WaysOut:
    """The ways out of the machine that workers use. Raises SettingsError."""
    return {
        "mail_transport": mail_transport(settings),
        "third_party": third_party(settings, tls),
        "rule_requests": rule_requests(settings, tls),
        "callbacks": http_callbacks(settings, tls),
        "streams": cloud_streams(settings),
        "alarm_ways": alarm_ways(settings, tls),
        "upstreams": upstreams(settings),
    }


def leased_ways(ways: WaysOut, leases: Leases, *, is_alone: bool) -> WaysOut:
    """Ways out of a daemon whose place another one may take. Each of several nodes asks third parties."""
    mails, streams, third = ways["mail_transport"], ways["streams"], ways["third_party"]
    subscriptions = leases.of(LeaseName.SUBSCRIPTIONS)
    lease = leases.of(LeaseName.CONNECTORS) if is_alone else leases.here
    return {
        "mail_transport": None if mails is None else LeasedMails(mails, leases.of(LeaseName.MAILS)),
        "third_party": None if third is None else LeasedThirdParty(third, lease),
        "rule_requests": LeasedRuleRequests(ways["rule_requests"], leases.of(LeaseName.RULES)),
        "callbacks": LeasedCallbacks(ways["callbacks"], subscriptions),
        "streams": None if streams is None else LeasedStreams(streams, subscriptions),
        "alarm_ways": LeasedAlarmWays(ways["alarm_ways"], leases.of(LeaseName.MAILS)),
        "upstreams": LeasedUpstreams(ways["upstreams"], leases.of(LeaseName.FORWARDS)),
    }
