"""The stores of a transaction: a line for each noun."""

from typing import Any, TypeVar

from storage.accounts import AccountStore
from storage.alarm_telling import AlarmTellingStore
from storage.alarms import AlarmStore
from storage.application_ends import ApplicationEndStore
from storage.approved_lists import ApprovedListStore
from storage.archives import UserArchiveStore
from storage.audit import AuditStore
from storage.authorizations import AuthorizationStore
from storage.boards import BoardStore
from storage.claims import ClaimStore
from storage.codes import CodeStore
from storage.connectors import ConnectorStore
from storage.data_readers import DataReaderStore
from storage.deliveries import DeliveryStore
from storage.device_connections import DeviceConnectionStore
from storage.device_management import DeviceManagementStore
from storage.device_types import DeviceTypeStore
from storage.devices import DeviceStore
from storage.engines.port import EngineConnection
from storage.erasures import ErasureStore
from storage.export import ExportStore
from storage.facts import FactStore
from storage.failed_readings import FailedReadingStore
from storage.files import FileStore
from storage.firmware import FirmwareStore
from storage.forwarding import ForwardingStore
from storage.found import FoundStore
from storage.homes import HomeStore
from storage.imports import ImportStore
from storage.labels import LabelStore
from storage.leases import LeaseStore
from storage.leaving import LeavingStore
from storage.limits import LimitStore
from storage.lwm2m import Lwm2mStore
from storage.lwm2m_actions import Lwm2mActionStore
from storage.mail import MailStore
from storage.message_searches import MessageSearches
from storage.messages import MessageStore
from storage.models import ModelStore
from storage.monetization import MonetizationStore
from storage.mqtt_sessions import MqttSessionStore
from storage.mqtt_topics import MqttTopicStore
from storage.mqtt_wills import MqttWillStore
from storage.names import NameStore
from storage.operating import OperatingStore
from storage.operator_backups import OperatorBackupStore
from storage.provision_marks import ProvisionMarkStore
from storage.registrations import RegistrationStore
from storage.removal import RemovalStore
from storage.retention import RetentionStore
from storage.rollups import RollupStore
from storage.rules import RuleStore
from storage.scenes import SceneStore
from storage.second_factors import SecondFactorStore
from storage.sessions import SessionStore
from storage.shares import ShareStore
from storage.snapshots import SnapshotStore
from storage.subscriptions import SubscriptionStore
from storage.tasks import TaskStore
from storage.told import Tellable
from storage.transfers import TransferStore
from storage.trial_invitations import TrialInvitationStore
from storage.trial_sessions import TrialSessionStore
from storage.trials import TrialStore
from storage.wanted import WantedStore

_K = TypeVar("_K")


class Transaction:
    """One open transaction. Its stores are the only way to the tables."""

    def __init__(self, connection: EngineConnection) -> None:  # noqa: PLR0915 - a line for each store
        self.connection = connection
        self.told: list[tuple[Tellable[Any], Any]] | None = None  # while it writes
        self.accounts = AccountStore(connection)
        self.application_ends = ApplicationEndStore(connection)
        self.audit = AuditStore(connection)
        self.user_archives = UserArchiveStore(connection)
        self.authorizations = AuthorizationStore(connection)
        self.claims = ClaimStore(connection)
        self.codes = CodeStore(connection)
        self.connectors = ConnectorStore(connection)
        self.device_types = DeviceTypeStore(connection)
        self.devices = DeviceStore(connection)
        self.messages = MessageStore(connection)
        self.message_searches = MessageSearches(connection, self.messages)
        self.labels = LabelStore(connection)
        self.leases = LeaseStore(connection)
        self.leaving = LeavingStore(connection)
        self.limits = LimitStore(connection)
        self.lwm2m = Lwm2mStore(connection)
        self.lwm2m_actions = Lwm2mActionStore(connection)
        self.mails = MailStore(connection)
        self.rollups = RollupStore(connection)
        self.snapshots = SnapshotStore(connection)
        self.exports = ExportStore(connection)
        self.facts = FactStore(connection)
        self.failed_readings = FailedReadingStore(connection)
        self.device_connections = DeviceConnectionStore(connection)
        self.retention = RetentionStore(connection)
        self.removal = RemovalStore(connection)
        self.scenes = SceneStore(connection)
        self.boards = BoardStore(connection)
        self.second_factors = SecondFactorStore(connection)
        self.sessions = SessionStore(connection)
        self.models = ModelStore(connection)
        self.monetization = MonetizationStore(connection)
        self.mqtt_sessions = MqttSessionStore(connection)
        self.mqtt_topics = MqttTopicStore(connection)
        self.found = FoundStore(connection)
        self.homes = HomeStore(connection)
        self.forwarding = ForwardingStore(connection)
        self.mqtt_wills = MqttWillStore(connection)
        self.provision_marks = ProvisionMarkStore(connection)
        self.registrations = RegistrationStore(connection)
        self.approved_lists = ApprovedListStore(connection)
        self.shares = ShareStore(connection)
        self.device_management = DeviceManagementStore(connection)
        self.tasks = TaskStore(connection)
        self.firmware = FirmwareStore(connection)
        self.files = FileStore(connection)
        self.transfers = TransferStore(connection)
        self.wanted = WantedStore(connection)
        self.alarms = AlarmStore(connection)
        self.alarm_telling = AlarmTellingStore(connection)
        self.erasures = ErasureStore(connection)
        self.data_readers = DataReaderStore(connection)
        self.imports = ImportStore(connection)
        self.trials = TrialStore(connection)
        self.trial_invitations = TrialInvitationStore(connection)
        self.trial_sessions = TrialSessionStore(connection)
        self.subscriptions = SubscriptionStore(connection)
        self.deliveries = DeliveryStore(connection)
        self.rules = RuleStore(connection)
        self.names = NameStore(connection)
        self.operating = OperatingStore(connection)
        self.operator_backups = OperatorBackupStore(connection)

    def tell(self, kind: Tellable[_K], key: _K) -> None:
        """Tell a change to all who listen for this kind, in the order of the commits, once it is durable. A work that
        is undone tells nothing. Raises RuntimeError in a read."""
        if self.told is None:
            raise RuntimeError("a read has nothing to tell")
        self.told.append((kind, key))
