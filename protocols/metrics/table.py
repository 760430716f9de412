"""The metric of each statistic: its name, unit and meaning after Prometheus's conventions.

Names have base units (`bytes`, `seconds`), counters end with `_total`. A metric of several statistics tells them apart
by a label. A test fails when a statistic has no line here. Nothing here may have a label whose values a user or a
stranger chooses: each value is a time series that Prometheus keeps.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from broker.cluster.leases import LeaseName


class Metric(msgspec.Struct, frozen=True):
    """`name` is without the prefix `trunkline_` and without `_total`; a value is multiplied by `scale`."""

    name: str
    help: str
    is_counter: bool
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    scale: float = 1


def _now(name: str, help_: str, *, scale: float = 1, **labels: str) -> Metric:
    return Metric(name, help_, False, labels, scale)


def _total(name: str, help_: str, **labels: str) -> Metric:
    return Metric(name, help_, True, labels)


Part = Mapping[str, Metric]

_DELETED: Final = "Rows that retention has deleted."
_ROLLUPS: Final = "The part of rollups; an estimate."
_TASKS: Final = "Device tasks that ended, by how."
_LWM2M_ACTIONS: Final = "Actions that were operations on an LWM2M device, by their end."
_NOTICES: Final = "Notices about alarms to ntfy and Apprise, by outcome; one that failed is tried again."
_OPEN_ALARMS: Final = "Alarms that are not cleared, by severity; counted once a minute."
_WANTED: Final = "Wanted values that have ended, by how."
_WANTED_WRITES: Final = "Wanted values that were written to LWM2M devices, by the answer."
_ENDPOINT: Final[Part] = {
    "sessions": _now("coap_sessions", "Peers that CoAP keeps in memory."),
    "strangers": _now("coap_strangers", "CoAP peers without a request that had a valid device token."),
    "observers": _now("coap_observers", "CoAP observers of Actions."),
    "bytes_held": _now("coap_held_bytes", "Bytes that CoAP holds for its peers."),
    "requests": _total("coap_requests", "CoAP requests."),
    "requests_dropped": _total("coap_dropped", "Datagrams that were not served.", reason="requests"),
    "overhead_dropped": _total("coap_dropped", "Datagrams that were not served.", reason="overhead"),
    "strangers_dropped": _total("coap_dropped", "Datagrams that were not served.", reason="strangers"),
    "malformed": _total("coap_malformed", "Datagrams that are no CoAP message."),
    "duplicates": _total("coap_duplicates", "CoAP messages that came again."),
    "retransmissions": _total("coap_retransmissions", "CoAP messages that were sent again."),
    "notifications": _total("coap_notifications", "Notifications to CoAP observers."),
    "notifications_lost": _total("coap_notifications_lost", "Notifications that their observer never acknowledged."),
    "challenges": _total("coap_challenges", "Responses that were replaced by 4.01 with Echo."),
    "evicted": _total("coap_evicted", "CoAP sessions that ended because a limit was exceeded."),
    "datagrams_lost": _total("coap_datagrams_lost", "Datagrams that the operating system did not send."),
}
_DTLS: Final[Part] = {
    "sessions": _now("dtls_sessions", "DTLS sessions."),
    "half_open": _now("dtls_half_open", "DTLS handshakes under way."),
    "handshakes": _total("dtls_handshakes", "DTLS handshakes that succeeded."),
    "handshakes_resumed": _total("dtls_handshakes_resumed", "DTLS handshakes that resumed a session."),
    "handshakes_failed": _total("dtls_handshakes_failed", "DTLS handshakes that failed."),
    "half_open_evicted": _total("dtls_half_open_evicted", "DTLS handshakes that ended for newer ones."),
    "hellos_dropped": _total("dtls_hellos_dropped", "ClientHellos that were not answered."),
    "datagrams_lost": _total("dtls_datagrams_lost", "Datagrams of DTLS that the operating system did not send."),
}
_LWM2M: Final[Part] = {
    "registered": _now("lwm2m_registered_devices", "Devices that are registered by LWM2M."),
    "asleep": _now("lwm2m_asleep_devices", "Registered devices in queue mode that are silent."),
    "registrations": _total("lwm2m_registrations", "LWM2M registrations."),
    "updates": _total("lwm2m_updates", "Updates of LWM2M registrations."),
    "refused": _total("lwm2m_refused", "LWM2M requests of devices that were refused."),
    "expired": _total("lwm2m_expired", "LWM2M registrations whose lifetime has passed."),
    "notifications": _total("lwm2m_notifications", "Notifications of LWM2M devices."),
    "unreadable": _total("lwm2m_unreadable", "Answers and notifications of LWM2M devices that cannot be read."),
    "communication_failures": _total("lwm2m_communication_failures", "LWM2M devices that did not answer in time."),
}

#: By the name of a part in `trunkline statistics`, and the name of a statistic in it.
BROKER: Final[Mapping[str, Part]] = {
    "store": {
        "commits": _total("store_commits", "Commits of the store that succeeded."),
        "rows": _total("store_log_rows", "Rows of the message log that were committed."),
        "failures": _total("store_failed_commits", "Commits of the store that failed."),
        "waiting_rows": _now("store_waiting_rows", "Rows of the message log that wait for the next commit."),
        "waiting_writes": _now("store_waiting_writes", "Other writes that wait for the next commit."),
        "waiting_reads": _now("store_waiting_reads", "Reads that wait for one of the readers."),
    },
    "clock": {
        "jumped_seconds": _now("clock_jumped_seconds", "How far the clock jumped ahead, while nothing is deleted."),
    },
    "refusals": {
        "sources": _now("refusal_sources", "Sources of refusals that are in memory."),
    },
    "audit log": {
        "waiting": _now("audit_waiting_entries", "Entries of the audit log that wait to be written."),
        "lost": _total("audit_lost_entries", "Entries of the audit log that found the queue full."),
        "removed": _total("audit_removed_entries", "Old entries of the audit log that were removed."),
    },
    "counters": {
        "counters": _now("limit_counters", "Counters of limits in memory."),
        "unwritten": _now("limit_counters_unwritten", "Counters of limits that wait to be written."),
    },
    "rate limits": {
        "busy": _now("rate_limit_busy_callers", "Callers with a call in the last minute."),
        "counted": _total("rate_limit_calls", "Calls that rate limits have counted and saved."),
        "refused": _total("rate_limit_refused", "Calls beyond their caller's rate limit."),
    },
    "addresses": {
        "remembered": _now("addresses", "Addresses whose requests without a token are counted."),
        "refused": _total("address_refused", "Requests without a token beyond the limit of their address."),
    },
    "overhead": {
        "waiting": _now("overhead_waiting_peers", "Peers beyond their allowance of frames without a message."),
        "delayed": _total("overhead_delayed_frames", "Frames beyond such an allowance."),
    },
    "authenticated connections": {
        "connections": _now("authenticated_connections", "Connections on which somebody is authenticated."),
        "feeds": _now("feed_connections", "Those of them that are feeds: /live and /events."),
        "refused": _total("authenticated_refused", "Connections that were too many for a token, user or device."),
    },
    "unauthenticated connections": {
        "connections": _now("unauthenticated_connections", "TCP connections on which nobody is authenticated."),
        "waiting": _now("unauthenticated_waiting", "TCP connections that wait for a place of their address."),
        "refused": _total("unauthenticated_refused", "TCP connections for which there was no place."),
        "ended_for_others": _total("unauthenticated_ended", "TCP connections that ended to give others their place."),
    },
    "bodies": {
        "bytes": _now("body_bytes", "Bytes of request bodies in memory."),
        "unauthenticated_bytes": _now("body_unauthenticated_bytes", "The part of them that strangers sent."),
        "refused": _total("body_refused", "Request bodies for which there was no room."),
    },
    "quotas": {
        "organizations": _now("quota_organizations", "Organizations with a message quota."),
        "devices_on_a_plan": _now("quota_devices_on_a_plan", "Devices with a daily quota of their tier."),
        "owners_told": _now("quota_owners_told", "Devices whose owner was told today that the quota is used up."),
        "units": _total("quota_units", "Messages, Actions and deliveries that were charged."),
        "refused": _total("quota_refused", "Messages and Actions that a quota refused."),
        "deliveries_dropped": _total("quota_deliveries_dropped", "Deliveries that a quota dropped."),
    },
    "approved lists": {
        "files": _total("approved_list_files", "Uploads of approved lists that were taken."),
        "files_refused": _total("approved_list_files_refused", "Uploads of approved lists that were refused."),
        "ids_taken": _total("approved_list_ids", "Ids that approved lists have got."),
        "rows_rejected": _total("approved_list_rows_rejected", "Rows of uploads that are no valid id."),
    },
    "connections": {
        "links": _now("device_links", "Links of connected devices."),
        "devices_online": _now("devices_connected", "Devices with a link."),
        "takeovers": _total("device_takeovers", "Connections that a newer one of the same device has ended."),
        "actions_delivered": _total("actions_delivered", "Actions that were handed to a link."),
        "actions_dropped": _total("actions_dropped", "Actions that a slow link has lost."),
    },
    "topics": {
        "subscriptions": _now("mqtt_topic_subscriptions", "Subscriptions in the open topic space."),
        "retained": _now("mqtt_retained_messages", "Retained messages of the open topic space."),
        "retained_bytes": _now("mqtt_retained_bytes", "Bytes of the retained messages."),
        "messages": _total("mqtt_topic_messages", "Messages of the open topic space."),
        "deliveries": _total("mqtt_topic_deliveries", "Deliveries of messages of the open topic space."),
    },
    "topic devices": {
        "stored": _total("topic_device_messages", "Messages that were made of open topics and hooks."),
        "ignored": _total("topic_device_ignored", "Payloads about nothing that a mapping of topic devices takes."),
        "refused": _total("topic_device_refused", "Messages of topic devices that their limits refused."),
        "not_understood": _total("topic_device_not_understood", "Payloads of topic devices that were not understood."),
        "unknown": _now("topic_device_unknown_keys", "Keys of topic devices without a device."),
        "made": _total("topic_device_made", "Devices that were made for keys of topic devices."),
        "waiting": _now("topic_device_waiting", "Messages of topic devices whose device is looked up or made."),
        "entries": _now("topic_device_entries", "Entries of topic_devices in the settings."),
    },
    "forwards": {
        "messages": _total("forwarded_messages", "Messages that upstreams have taken."),
        "actions": _total("forward_actions", "Actions that came from upstreams.", outcome="stored"),
        "refused_actions": _total("forward_actions", "Actions that came from upstreams.", outcome="refused"),
        "failures": _total("forward_failures", "Failures of an upstream: it is tried again."),
        "behind": _now("forward_behind_rows", "Rows of the log that the slowest upstream does not have."),
        "behind_seconds": _now("forward_behind_seconds", "How long ago the oldest message came that is not sent."),
        "lost": _now("forward_lost_rows", "Rows that retention has deleted before they were sent, at most."),
        "failing": _now("forwards_failing", "Upstreams that do not take what they are sent."),
        "entries": _now("forwards", "Entries of forward in the settings."),
    },
    "edges": {
        "batches": _total("edge_batches", "Batches of stores that forward to this one."),
        "again": _total("edge_batches_again", "Batches that came again, and were stored already."),
        "messages": _total("edge_messages", "Messages of stores that forward to this one."),
        "dropped": _total("edge_messages_dropped", "Messages of such stores that were not stored, or have failed."),
        "refused": _total("edge_batches_refused", "Batches of other stores, of copies, or that would come back."),
        "actions": _total("edge_actions", "Actions that such stores have got."),
        "waiting": _now("edge_waiting_requests", "Requests of such stores that wait for Actions."),
        "edges": _now("edges", "Stores that may forward to this one."),
    },
    "home assistant": {
        "homes": _now("home_assistant_users", "Users whose devices are announced to Home Assistant."),
        "devices": _now("home_assistant_devices", "Devices that are announced to Home Assistant."),
        "waiting": _now("home_assistant_waiting", "Devices and messages that wait to be shown in Home Assistant."),
        "actions": _total("home_assistant_actions", "Actions that came from Home Assistant."),
    },
    "tools of assistants": {
        "calls": _total("tool_calls", "Calls of tools by assistants."),
        "refused": _total("tool_calls_refused", "Calls of tools that were refused."),
        "parts": _total("tool_answers_cut", "Answers of tools that were a part."),
    },
    "found devices": {
        "clients": _now("found_clients", "MQTT clients whose announcements are read."),
        "found": _now("found_devices", "Devices that MQTT clients announce."),
        "accepted": _now("found_devices_accepted", "Devices that were made of announced ones."),
        "waiting": _now("found_waiting", "Announcements that wait to be read."),
        "messages": _total("found_messages", "Messages that were made of published states."),
    },
    "mqtt sessions": {
        "connected": _now("mqtt_lasting_connections", "MQTT connections where sessions may outlive them."),
        "resumed": _total("mqtt_sessions_resumed", "MQTT sessions that went on with a new connection."),
        "expired": _total("mqtt_sessions_expired", "MQTT sessions whose time has passed."),
        "deliveries_dropped": _total("mqtt_deliveries_dropped", "Deliveries that MQTT sessions have lost."),
    },
    "mqtt wills": {
        "waiting": _now("mqtt_wills_waiting", "Wills that wait for their delay."),
        "published": _total("mqtt_wills_published", "Wills that were published."),
    },
    "feeds": {
        "subscribers": _now("feed_subscribers", "Subscribers of live feeds."),
        "messages_offered": _total("feed_messages_offered", "Messages that were offered to subscribers."),
    },
    "log feeds": {
        "feeds": _now("log_feeds", "Live feeds that go on from a position of the log."),
        "behind": _now("log_feeds_behind", "Those of them that read the log now."),
        "pages": _total("log_feed_pages", "Pages of the log that live feeds have read."),
        "rows": _total("log_feed_rows", "Messages and Actions in these pages."),
        "gaps": _total("log_feed_gaps", "Gaps that were told, because retention had deleted messages."),
    },
    "events": {
        "subscribers": _now("event_subscribers", "Subscribers of events."),
        "events": _total("events", "Events."),
    },
    "exports": {
        "finished": _total("exports", "Exports that ended, by how.", outcome="finished"),
        "failed": _total("exports", "Exports that ended, by how.", outcome="failed"),
        "messages": _total("export_messages", "Messages that exports have written."),
    },
    "imports": {
        "finished": _total("imports", "Imports that ended, by how.", outcome="finished"),
        "failed": _total("imports", "Imports that ended, by how.", outcome="failed"),
        "stored": _total("import_lines", "Lines of imports, by their outcome.", outcome="stored"),
        "present": _total("import_lines", "Lines of imports, by their outcome.", outcome="present"),
        "wrong": _total("import_lines", "Lines of imports, by their outcome.", outcome="wrong"),
    },
    "erasures": {
        "finished": _total("message_deletions", "Deletions of messages that owners asked for, and that ended."),
        "messages": _total("message_deletions_messages", "Messages that they have deleted."),
    },
    "mails": {
        "waiting": _now("mails_waiting", "Mails that waited when the queue was last read."),
        "queued": _total("mails_queued", "Mails that were queued."),
        "joined": _total("mails_joined", "Mails that were put into one that waited."),
        "refused": _total("mails_refused", "Mails beyond the rates of mails."),
        "sent": _total("mails_sent", "Mails that were sent."),
        "deferred": _total("mails_deferred", "Attempts to send a mail that will be repeated."),
        "given_up": _total("mails_given_up", "Mails that were never sent."),
        "server_available": _now("mail_server_available", "Whether the mail server answers."),
    },
    "connectors": {
        "calls": _total("connector_calls", "Calls to third-party clouds."),
        "failed_calls": _total("connector_failed_calls", "Calls to third-party clouds that failed."),
        "refused_clients": _total("connector_refused_clients", "Calls refused for the operator's client credentials."),
        "failed_fetches": _total("connector_failed_fetches", "Fetches of readings that failed."),
        "notifications": _total("connector_notifications", "Notifications of third-party clouds."),
        "failed_notifications": _total("connector_failed_notifications", "Notifications that could not be used."),
        "stored": _total("connector_messages", "Messages of third-party clouds.", outcome="stored"),
        "refused": _total("connector_messages", "Messages of third-party clouds.", outcome="refused"),
        "actions_sent": _total("connector_actions", "Actions to third-party clouds.", outcome="sent"),
        "actions_failed": _total("connector_actions", "Actions to third-party clouds.", outcome="failed"),
        "waiting": _now("connector_waiting_jobs", "Fetches and Actions that wait for their turn."),
        "dropped": _total("connector_dropped_jobs", "Fetches and Actions that found their queue full."),
    },
    "ingest": {
        "messages": _total("messages", "Messages that were accepted."),
        "failed_messages": _total("failed_messages", "Messages that the Manifest refused."),
        "actions": _total("actions", "Actions that were accepted."),
    },
    "failed messages": {
        "looked": _total("failed_messages_read_again", "Failed messages that were read with a new Manifest."),
        "fit": _total("failed_messages_that_fit", "Those of them that are messages now."),
    },
    "folds": {
        "position": _now("projection_position", "The position in the log up to which snapshots and rollups are made."),
        "written_position": _now(
            "projection_written_position", "The same, of what is in the store; a crash repeats the rest."
        ),
        "indexed_position": _now(
            "projection_indexed_position", "The position up to which the log has index entries; searches scan the rest."
        ),
        "held_rows": _now("projection_held_rows", "Stored rows that snapshots and rollups do not have yet."),
        "unwritten_devices": _now(
            "projection_unwritten_devices", "Devices whose snapshots and rollups are to be written."
        ),
    },
    "retention": {
        "days": _now("retention_seconds", "How long messages are kept; 0 keeps everything.", scale=86_400),
        "types_with_own_days": _now("retention_device_types", "Device types with a retention of their own."),
        "deleted_messages": _total("retention_deleted_rows", _DELETED, table="messages"),
        "deleted_actions": _total("retention_deleted_rows", _DELETED, table="actions"),
        "deleted_failed_messages": _total("retention_deleted_rows", _DELETED, table="failed_messages"),
        "deleted_rollups": _total("retention_deleted_rows", _DELETED, table="rollups"),
        "store_bytes": _now("store_bytes", "The size of the store at the last sweep."),
        "free_bytes": _now("store_free_bytes", "The part of the store that is free for reuse."),
        "message_bytes": _now("store_message_bytes", "The part of the store that messages take; an estimate."),
        "index_bytes": _now("store_index_bytes", "The part of the log's index; an estimate."),
        "minute_rollup_bytes": _now("store_rollup_bytes", _ROLLUPS, level="minute"),
        "hour_rollup_bytes": _now("store_rollup_bytes", _ROLLUPS, level="hour"),
        "day_rollup_bytes": _now("store_rollup_bytes", _ROLLUPS, level="day"),
        "file_bytes": _now("store_file_bytes", "The part of firmware images and archives."),
        "audit_bytes": _now("store_audit_bytes", "The part of the audit log; an estimate."),
        "delivery_bytes": _now("store_delivery_bytes", "The part of the delivery log; an estimate."),
        "other_bytes": _now("store_other_bytes", "The part of all other tables."),
    },
    "presence": {
        "online": _now("devices_online", "Devices that are online."),
        "unwritten": _now("presence_unwritten", "Devices whose presence waits to be written."),
    },
    "archives": {
        "finished": _total("archives", "Archives of users that ended, by how.", outcome="finished"),
        "failed": _total("archives", "Archives of users that ended, by how.", outcome="failed"),
    },
    "leaving users": {
        "under_way": _now("leaving_users", "Users who were being deleted at the last look."),
        "deleted": _total("deleted_users", "Users who were deleted with everything of theirs."),
    },
    "removal": {
        "removed_devices": _total("removed_devices", "Deleted devices whose data were removed."),
    },
    "downloads": {
        "requests": _total("image_requests", "Requests for firmware images."),
        "bytes_sent": _total("image_sent_bytes", "Bytes of firmware images that were sent."),
    },
    "wanted": {
        "devices": _now("wanted_devices", "Devices of which values are wanted."),
        "open": _now("wanted_values", "Wanted values that no message has reported yet."),
        "reached": _total("wanted_ended", _WANTED, end="reached"),
        "expired": _total("wanted_ended", _WANTED, end="expired"),
        "given": _total("wanted_given", "Times that devices were given new wanted values."),
    },
    "wanted writes": {
        "writing": _now("wanted_writes_under_way", "LWM2M devices to which wanted values are written now."),
        "written": _total("wanted_writes", _WANTED_WRITES, end="written"),
        "refused": _total("wanted_writes", _WANTED_WRITES, end="refused"),
    },
    "device actions": {
        "waiting": _now("lwm2m_actions_waiting", "Actions that wait for an LWM2M device."),
        "done": _total("lwm2m_actions", _LWM2M_ACTIONS, outcome="done"),
        "failed": _total("lwm2m_actions", _LWM2M_ACTIONS, outcome="failed"),
    },
    "tasks": {
        "sessions": _now("task_sessions", "Devices that tasks can reach now."),
        "working": _now("task_working_devices", "Devices that work at a task now."),
        "timers": _now("task_timers", "Timers of tasks."),
        "succeeded": _total("device_tasks", _TASKS, outcome="succeeded"),
        "failed": _total("device_tasks", _TASKS, outcome="failed"),
        "cancelled": _total("device_tasks", _TASKS, outcome="cancelled"),
        "tried_again": _total("device_tasks_tried_again", "Device tasks that were tried again."),
    },
    "scenes": {
        "invalidated": _total("scenes_invalidated", "Scenes that became invalid."),
        "devices_waiting": _now("scene_waiting_devices", "Changed devices whose scenes are still to be looked at."),
    },
    "models": {
        "ready": _now("models_ready", "Models that are ready."),
        "trained": _total("model_trainings", "Trainings of models, by how they ended.", outcome="trained"),
        "failed": _total("model_trainings", "Trainings of models, by how they ended.", outcome="failed"),
    },
    "subscriptions": {
        **{
            status: _now("subscriptions", "Subscriptions, by status.", status=status)
            for status in ("active", "unvalidated", "paused", "suspended")
        },
        "backlog": _now("subscription_backlog", "Messages and Actions in memory that wait for their first attempt."),
        "behind": _now("subscriptions_behind", "Subscriptions for which more messages wait in the log."),
        "pending": _now("notifications_pending", "Notifications that are neither delivered nor given up."),
        "in_flight": _now("notifications_in_flight", "Notifications whose attempt is under way."),
        "formed": _total("notifications_formed", "Notifications that were formed."),
        "attempts": _total("notification_attempts", "Attempts to deliver a notification."),
        "delivered": _total("notifications_delivered", "Notifications that were delivered."),
        "failed_attempts": _total("notification_failed_attempts", "Attempts that failed."),
        "given_up": _total("notifications_given_up", "Notifications that were never delivered."),
        "log_bytes": _now("delivery_log_bytes", "The size of the delivery log."),
        "log_removed": _total("delivery_log_removed_entries", "Entries of the delivery log that were removed."),
    },
    "alarms": {
        "open_info": _now("alarms_open", _OPEN_ALARMS, severity="info"),
        "open_warning": _now("alarms_open", _OPEN_ALARMS, severity="warning"),
        "open_critical": _now("alarms_open", _OPEN_ALARMS, severity="critical"),
        "deleted": _total("alarms_deleted", "Cleared alarms that were deleted because of their age or number."),
    },
    "alarms told": {
        "told": _total("alarms_told", "Alarms that their users were told of."),
    },
    "alarm notices": {
        "sent": _total("alarm_notices", _NOTICES, outcome="sent"),
        "failed": _total("alarm_notices", _NOTICES, outcome="failed"),
        "given_up": _total("alarm_notices", _NOTICES, outcome="given up"),
    },
    "rules": {
        "rules": _now("rules", "Rules that are evaluated."),
        "timers": _now("rule_timers", "Durations that run and times that are due."),
        "position": _now("rules_position", "The position in the log up to which rules have been evaluated."),
        "waiting_rows": _now("rule_waiting_messages", "Stored messages that rules have not seen yet."),
        "evaluated": _total("rule_evaluations", "Evaluations of a rule."),
        "triggered": _total("rules_triggered", "How often a rule triggered."),
        "actions": _total("rule_actions", "Actions that rules sent."),
        "alarms": _total("alarms_raised", "Alarms that rules raised."),
        "problems": _total("rule_problems", "Problems that a rule shows, such as an Action that could not be sent."),
        "stopped": _total("rules_stopped", "Rules that were stopped because they triggered themselves."),
    },
    "rule checks": {
        "invalidated": _total("rules_invalidated", "Rules that became invalid."),
        "waiting": _now("rule_waiting_checks", "Changed devices and types whose rules are still to be looked at."),
    },
    "rule requests": {
        outcome: _total("rule_http_requests", "HTTP requests of rules, by how they ended.", outcome=outcome)
        for outcome in ("sent", "failed", "refused")
    },
    "trials": {
        "created": _total("trials_created", "Trials that were created."),
        "stopped": _total("trials_stopped", "Trials that were stopped."),
        "deleted": _total("trials_deleted", "Trials that were deleted."),
    },
    "trial invitations": {
        "sent": _total("trial_invitations", "Invitations to trials, by what became of them.", outcome="sent"),
        "accepted": _total("trial_invitations", "Invitations to trials, by what became of them.", outcome="accepted"),
    },
}

#: Counts that `protocols/daemon.py` observes, the last three over PostgreSQL only: a list counts by its length.
DAEMON: Final[Mapping[str, Part]] = {
    "loop": {
        "tasks": _now("loop_tasks", "Tasks of the event loop: workers, and those of connections."),
    },
    "damage": {
        "failures": _total("store_damage_failures", "Statements that met a part of the store that cannot be read."),
        "tables": _now("store_damaged_tables", "Tables of which a part cannot be read."),
        "set_aside": _now("store_tables_set_aside", "Tables that a start replaced because they took no more rows."),
    },
    "database": {
        "connections_lost": _total("database_connections_lost", "Connections to PostgreSQL that broke."),
        "commits_in_doubt": _total(
            "database_commits_in_doubt", "Commits of which it was unknown whether they are stored."
        ),
        "waits": _total("database_waits", "Works that waited for a new connection to PostgreSQL."),
    },
    "node": {
        "lease_epoch": _now("node_lease_epoch", "Epoch of the lease; 0 without it. Each take-over raises it."),
        "lease_left_seconds": _now("node_lease_left_seconds", "How long the lease lasts that is not renewed."),
        "latency_seconds": _now(
            "database_latency_seconds", "How long the latest renewal of the lease took, one commit."
        ),
        "standbys": _now("node_standbys", "Other nodes that stand by."),
        "oldest_snapshot_seconds": _now(
            "database_oldest_transaction_seconds", "How long the oldest transaction of the database has been open."
        ),
        "nodes": _now("nodes_serving", "Nodes that serve together, this one too; 0 where one serves."),
        "behind_rows": _now("node_behind_rows", "Messages and Actions of other nodes that are not published here yet."),
        "behind_facts": _now("node_behind_changes", "Changes of other nodes that are not known here yet."),
        "is_draining": _now("node_draining", "Whether this node moves its connections to others before it stops."),
    },
    "leases": {
        name.value: _now("lease_held", "Whether this node does the work that one does for all.", lease=name.value)
        for name in LeaseName
    },
}

#: The counters of listeners, by the same names; each with the name of its listener in the ready line.
LISTENERS: Final[Mapping[str, tuple[str, Part]]] = {
    "coap": ("coap", _ENDPOINT),
    "coaps": ("coaps", _ENDPOINT),
    "coaps handshakes": ("coaps", _DTLS),
    "lwm2m": ("", _LWM2M),
    "lwm2m sessions": ("lwm2m_dtls", _ENDPOINT),
    "lwm2m handshakes": ("lwm2m_dtls", _DTLS),
}
