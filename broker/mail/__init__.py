"""Outgoing mails: queued in the transaction of their cause, delivered at least once, or given up after 24 hours."""

from broker.mail.kinds import (
    AccountInvitation,
    AddressConfirmation,
    AlarmMail,
    DeviceQuotaUsedUp,
    DeviceShareInvitation,
    DeviceTransferAnswered,
    DeviceTransferOffer,
    ExportFinished,
    Mail,
    MonetizationPlanDecided,
    NoPasswordHere,
    PasswordReset,
    RuleMail,
    RuleStopped,
    StreamRemoved,
    SubscriptionSuspended,
    TrialInvitation,
)
from broker.mail.letters import Letter
from broker.mail.queue import Mails, MailStatistics
from broker.mail.transport import (
    MailDeferred,
    MailRejected,
    MailServerUnavailable,
    MailTransport,
    OutgoingMail,
)

__all__ = [
    "AccountInvitation",
    "AddressConfirmation",
    "AlarmMail",
    "DeviceQuotaUsedUp",
    "DeviceShareInvitation",
    "DeviceTransferAnswered",
    "DeviceTransferOffer",
    "ExportFinished",
    "Letter",
    "Mail",
    "MailDeferred",
    "MailRejected",
    "MailServerUnavailable",
    "MailStatistics",
    "MailTransport",
    "Mails",
    "MonetizationPlanDecided",
    "NoPasswordHere",
    "OutgoingMail",
    "PasswordReset",
    "RuleMail",
    "RuleStopped",
    "StreamRemoved",
    "SubscriptionSuspended",
    "TrialInvitation",
]
