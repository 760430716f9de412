"""All calls of the REST API, in the order of the document."""

from typing import Final

from protocols.http.calls import RestCalls
from protocols.http.rest.accounts import AccountsCalls
from protocols.http.rest.actions import ActionCalls
from protocols.http.rest.analytics import AnalyticsCalls
from protocols.http.rest.approved_lists import ApprovedListCalls
from protocols.http.rest.connectors import ConnectorCalls
from protocols.http.rest.device_shares import DeviceShareCalls
from protocols.http.rest.device_status import DeviceStatusCalls
from protocols.http.rest.device_tokens import DeviceTokenCalls
from protocols.http.rest.device_types import DeviceTypeCalls
from protocols.http.rest.devices import DeviceCalls
from protocols.http.rest.export import ExportCalls
from protocols.http.rest.manifests import ManifestCalls
from protocols.http.rest.messages import MessageCalls
from protocols.http.rest.monetization import MonetizationCalls
from protocols.http.rest.registrations import RegistrationCalls
from protocols.http.rest.tags import TagCalls
from protocols.http.rest.users import UserCalls

NOUNS: Final[tuple[type[RestCalls], ...]] = (
    MessageCalls,
    ActionCalls,
    AnalyticsCalls,
    ExportCalls,
    DeviceCalls,
    DeviceTokenCalls,
    DeviceStatusCalls,
    DeviceShareCalls,
    RegistrationCalls,
    DeviceTypeCalls,
    ManifestCalls,
    TagCalls,
    ApprovedListCalls,
    ConnectorCalls,
    MonetizationCalls,
    UserCalls,
    AccountsCalls,
)
