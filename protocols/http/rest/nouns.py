"""All calls of the REST API, in the order of the document."""

from typing import Final

from protocols.http.calls import RestCalls
from protocols.http.rest.accounts import AccountsCalls
from protocols.http.rest.actions import ActionCalls
from protocols.http.rest.alarm_telling import AlarmTellingCalls
from protocols.http.rest.alarms import AlarmCalls
from protocols.http.rest.analytics import AnalyticsCalls
from protocols.http.rest.approved_lists import ApprovedListCalls
from protocols.http.rest.batches import BatchCalls
from protocols.http.rest.boards import BoardCalls
from protocols.http.rest.connectors import ConnectorCalls
from protocols.http.rest.deletions import DeletionCalls
from protocols.http.rest.developer import DeveloperCalls
from protocols.http.rest.developer_applications import DeveloperApplicationCalls
from protocols.http.rest.developer_connectors import DeveloperConnectorCalls
from protocols.http.rest.developer_types import DeveloperTypeCalls
from protocols.http.rest.device_properties import DevicePropertyCalls
from protocols.http.rest.device_resources import DeviceResourceCalls
from protocols.http.rest.device_shares import DeviceShareCalls
from protocols.http.rest.device_status import DeviceStatusCalls
from protocols.http.rest.device_tokens import DeviceTokenCalls
from protocols.http.rest.device_trail import DeviceTrailCalls
from protocols.http.rest.device_transfers import DeviceTransferCalls
from protocols.http.rest.device_types import DeviceTypeCalls
from protocols.http.rest.devices import DeviceCalls
from protocols.http.rest.export import ExportCalls
from protocols.http.rest.found import FoundCalls
from protocols.http.rest.images import ImageCalls
from protocols.http.rest.imports import ImportCalls
from protocols.http.rest.leaving import LeavingCalls
from protocols.http.rest.manifests import ManifestCalls
from protocols.http.rest.messages import MessageCalls
from protocols.http.rest.models import ModelCalls
from protocols.http.rest.monetization import MonetizationCalls
from protocols.http.rest.my_data import MyDataCalls
from protocols.http.rest.names import NameCalls
from protocols.http.rest.notifications import NotificationCalls
from protocols.http.rest.operator import OperatorCalls
from protocols.http.rest.operator_backups import OperatorBackupCalls
from protocols.http.rest.operator_decisions import OperatorDecisionCalls
from protocols.http.rest.operator_people import OperatorPeopleCalls
from protocols.http.rest.own_account import OwnAccountCalls
from protocols.http.rest.registrations import RegistrationCalls
from protocols.http.rest.rules import RuleCalls
from protocols.http.rest.scenes import SceneCalls
from protocols.http.rest.sessions import SessionCalls
from protocols.http.rest.subscriptions import SubscriptionCalls
from protocols.http.rest.tags import TagCalls
from protocols.http.rest.tasks import TaskCalls
from protocols.http.rest.trial_device_types import TrialTypeCalls
from protocols.http.rest.trial_documents import TrialDocumentCalls
from protocols.http.rest.trial_invitations import TrialInvitationCalls
from protocols.http.rest.trial_members import TrialMemberCalls
from protocols.http.rest.trial_sessions import TrialSessionCalls
from protocols.http.rest.trials import TrialCalls
from protocols.http.rest.users import UserCalls
from protocols.http.rest.values import ValueCalls
from protocols.http.rest.wanted import WantedCalls

NOUNS: Final[tuple[type[RestCalls], ...]] = (
    MessageCalls,
    BatchCalls,
    DeletionCalls,
    ActionCalls,
    AnalyticsCalls,
    ValueCalls,
    ExportCalls,
    ImportCalls,
    MyDataCalls,
    DeviceCalls,
    DeviceTokenCalls,
    DeviceStatusCalls,
    DeviceTrailCalls,
    WantedCalls,
    DeviceResourceCalls,
    DeviceShareCalls,
    DeviceTransferCalls,
    FoundCalls,
    RegistrationCalls,
    DeviceTypeCalls,
    ManifestCalls,
    TagCalls,
    ApprovedListCalls,
    SubscriptionCalls,
    NotificationCalls,
    ConnectorCalls,
    MonetizationCalls,
    DevicePropertyCalls,
    TaskCalls,
    ImageCalls,
    RuleCalls,
    AlarmCalls,
    AlarmTellingCalls,
    SceneCalls,
    BoardCalls,
    ModelCalls,
    TrialCalls,
    TrialTypeCalls,
    TrialInvitationCalls,
    TrialMemberCalls,
    TrialSessionCalls,
    TrialDocumentCalls,
    UserCalls,
    OwnAccountCalls,
    LeavingCalls,
    SessionCalls,
    AccountsCalls,
    DeveloperCalls,
    DeveloperApplicationCalls,
    DeveloperTypeCalls,
    DeveloperConnectorCalls,
    NameCalls,
    OperatorCalls,
    OperatorBackupCalls,
    OperatorDecisionCalls,
    OperatorPeopleCalls,
)
