"""The limits of the reference, each in one place."""

from typing import Final

CLOCK_AHEAD_MS: Final = 300_000  # reference 27.7: what is so far ahead comes from a clock that was set back since
CLOCK_STEP_MS: Final = 5_000  # reference 27.7: a clock that is set back by less makes `cts` stand still
MAX_DATA_BYTES: Final = 1024  # reference 21.3: message size
MAX_MESSAGE_BODY_BYTES: Final = 16 * 1024  # reference 1.3: POST /messages and /actions
MAX_BODY_BYTES: Final = 1024 * 1024  # reference 1.3: every other body
MAX_FORM_BYTES: Final = 16 * 1024  # reference 1.3: forms of the accounts paths
UNCOUNTED_BODY_BYTES: Final = 4 * 1024  # reference 21.6: shorter bodies are bounded by the number of connections
BODIES_BYTES: Final = 16 * 1024 * 1024  # reference 21.6: HTTP bodies in flight
UNAUTHENTICATED_BODIES_BYTES: Final = 2 * 1024 * 1024  # of them, those without a valid token
BODY_WAIT_SECONDS: Final = 5  # for room for a body
MAX_ACTIONS_PER_MESSAGE: Final = 20  # reference 9.1
JSON_NESTING_MAX: Final = 850  # levels of arrays and objects; Python 3.11 itself decodes fewer than 1,000

PAGE_COUNT_DEFAULT: Final = 100
PAGE_COUNT_MAX: Final = 100
IDS_MAX: Final = 100  # ids in sdids and dids lists
EVENT_PATTERN_MAX_CHARACTERS: Final = 64
CURSOR_MAX_CHARACTERS: Final = 128  # reference 9.3

NAME_MAX_CHARACTERS: Final = 64
DESCRIPTION_MAX_CHARACTERS: Final = 1_500  # reference 21.3: device types and trials
FORBIDDEN_IN_NAMES: Final = frozenset("<>&'\"")
DELETED_DEVICE_DAYS: Final = 30  # reference 6.1: how long a deleted device can be restored
DEVICE_SHARES_MAX: Final = 100  # of one device, refused ones not counted

REGISTRATION_SECONDS: Final = 30  # device channel: register after connecting
PING_SECONDS: Final = 30  # WebSocket: every 30 s on all channels
SILENCE_SECONDS: Final = 90  # WebSocket: no traffic at all closes with 1011
WEBSOCKET_FRAME_BYTES: Final = 64 * 1024
WEBSOCKET_BACKLOG: Final = 1000  # frames that may wait for a slow reader

UNREGISTERED_FRAMES_MAX: Final = 20  # device channel: of a peer that has shown no token yet

MQTT_CONNECT_SECONDS: Final = 10
MQTT_PACKET_BYTES: Final = 64 * 1024
MQTT_FILTERS_MAX: Final = 50  # of one SUBSCRIBE or UNSUBSCRIBE; a device has two topics

TURNS_BETWEEN_CONNECTIONS: Final = 8  # turns of the loop from a listener's new connection to its next one
PACKETS_PER_TURN: Final = 128  # MQTT packets or WebSocket frames of one connection before others run

USER_TOKEN_SECONDS: Final = 1_209_600
APPLICATION_TOKEN_SECONDS: Final = 86_400
REFRESH_WINDOW_DAYS: Final = 14
OLD_TOKEN_SECONDS: Final = 300  # reference 4.3: how long an access token outlives its refresh
AUTHORIZATION_CODE_SECONDS: Final = 60
DEVICE_CODE_SECONDS: Final = 1_800
DEVICE_POLL_SECONDS: Final = 5
DEVICE_POLL_GROWTH_SECONDS: Final = 5  # RFC 8628, 3.5: what `slow_down` adds to the interval
EXPIRY_SWEEP_SECONDS: Final = 2  # connections must end within 5 s after their token
USER_CODE_MISSES: Final = 10  # wrong user codes from one address, or of one text, within the window
USER_CODE_WINDOW_SECONDS: Final = 900
SESSION_SECONDS: Final = 14 * 86_400  # reference 4.2: how long a browser stays signed in
SESSIONS_OF_ONE_USER: Final = 100  # a new one ends the oldest
CONSOLE_TOKEN_SECONDS: Final = 3_600  # reference 4.10
CONSOLE_LINK_SECONDS: Final = 900  # a one-time link to the console
CONSOLE_LINKS: Final = 20  # that may wait; a new one ends the oldest
SESSION_USE_SECONDS: Final = 300  # the time of a session's last use is exact to this
FRESH_SIGN_IN_SECONDS: Final = 600  # reference 4.9: after the sign-in, while the second factor may be changed
SECOND_FACTOR_SECONDS: Final = 600  # from the right password to the right code
SECOND_FACTOR_MISSES: Final = 5  # reference 4.9: wrong codes for one account within the window
SECOND_FACTOR_WINDOW_SECONDS: Final = 900
SECOND_FACTOR_DAY_MISSES: Final = 20  # wrong codes for one account within a day
RECOVERY_CODES: Final = 10
PASSWORD_MISSES: Final = 5  # reference 4.2: wrong passwords for one account within the window
PASSWORD_ADDRESS_MISSES: Final = 50  # wrong passwords from one address within the window
PASSWORD_WINDOW_SECONDS: Final = 900
PASSWORD_MIN_CHARACTERS: Final = 8  # reference 4.2
PASSWORD_MAX_CHARACTERS: Final = 1_024  # longer passwords are refused before they are hashed
PASSWORD_MEMORY_MIB: Final = 19  # reference 4.2: what hashing one password takes
PASSWORD_RESET_SECONDS: Final = 1_800  # validity of the code in a reset mail
PASSWORD_RESETS: Final = 10  # asked for from one address within the window
PASSWORD_RESET_WINDOW_SECONDS: Final = 900
INVITATION_SECONDS: Final = 7 * 86_400  # validity of an invitation to open an account
EXTERNAL_SIGN_IN_SECONDS: Final = 600  # from leaving for an identity provider to coming back
EXTERNAL_SIGN_INS: Final = 10_000  # that may be under way
EXTERNAL_SIGN_INS_OF_ONE: Final = 100  # begun from one address within the window
EXTERNAL_SIGN_IN_WINDOW_SECONDS: Final = 900
SIGN_UPS: Final = 10  # tries to open an account from one address within the window
SIGN_UP_WINDOW_SECONDS: Final = 900
EMAIL_MAX_CHARACTERS: Final = 254
APPLICATION_PROPERTIES_MAX_CHARACTERS: Final = 10_000

UNAUTHENTICATED_CONNECTIONS: Final = 200  # reference 21.6: over all TCP listeners
UNAUTHENTICATED_CONNECTIONS_PER_ADDRESS: Final = 100
UNAUTHENTICATED_SECONDS: Final = 2  # how long such a connection keeps its place when another one needs it
UNAUTHENTICATED_WAITING: Final = 1_000  # connections that wait, unread, for a place of their address
UNAUTHENTICATED_WAIT_SECONDS: Final = 10
CALLS_PER_ADDRESS: Final = 600  # reference 21.1: a minute, where no token is counted
FREE_MONTHLY_MESSAGES: Final = 100_000  # reference 24: what an organization has without a plan

COAP_EXCHANGE_SECONDS: Final = 247  # reference 17: how long duplicates are recognised
COAP_SILENCE_SECONDS: Final = 300  # an observer is pinged after that
COAP_IDLE_SECONDS: Final = 600  # a DTLS session without observation ends after that
COAP_BODY_BYTES: Final = 2048  # assembled from blocks, or in one datagram

EXPORT_IDS_MAX: Final = 30  # reference 10: ids in each list
EXPORT_RANGE_DAYS: Final = 31
EXPORT_PAST_DAYS: Final = 30
EXPORT_KEPT_HOURS: Final = 24  # reference 10
EXPORT_ENTRY_MESSAGES: Final = 10_000  # reference 10: then a new entry starts
EXPORT_URL_CHARACTERS: Final = 2_000

CONNECTOR_CALLS_PER_MINUTE: Final = 60  # reference 21.1: calls to the external cloud, for each user
CONNECTOR_CALLS_PER_DAY: Final = 10_000
CONNECTOR_PULL_MINUTES: Final = 60  # reference 24
CONNECTOR_STATE_SECONDS: Final = 600  # how long a user may take to authorize the connector at the third party
CONNECTOR_STATES: Final = 5  # authorizations of one device under way
CONNECTOR_NOTIFICATION_BYTES: Final = 256 * 1024  # what a third party may send in one request
CONNECTOR_ANSWER_BYTES: Final = 1024 * 1024  # what a third party may answer
CONNECTOR_SECONDS: Final = 15  # how long a third party may take
CONNECTOR_HOOK_SECONDS: Final = 5  # how long a plug-in's hook may take
CONNECTOR_RESULTS: Final = 1_000  # events and Actions of one hook call
CONNECTOR_REQUESTS: Final = 20  # requests of one hook call
CONNECTOR_SUB_DEVICES: Final = 100  # of one linked device
CONNECTOR_WAITING: Final = 1_000  # Actions, or requests of notifications, that wait for one type's third party

REGISTRATION_PIN_SECONDS: Final = 3_600  # reference 7.1: validity of PIN and registration
PIN_MISSES: Final = 5  # reference 7.1: wrong PINs by one user within the window
PIN_WINDOW_SECONDS: Final = 600
REGISTRATION_KEPT_DAYS: Final = 30  # registrations that did not complete

APPROVED_ROWS_MAX: Final = 10_000  # reference 7.2: rows of one CSV
APPROVED_UPLOADS_WAITING: Final = 10  # of one device type
APPROVED_UPLOADS_KEPT: Final = 100  # of one device type, with their rejected rows
APPROVED_CERTIFICATES_MAX: Final = 100  # of one device type
CERTIFICATE_MAX_BYTES: Final = 32 * 1024  # of a request with a certificate
VENDOR_ID_MAX_CHARACTERS: Final = 64
UPGRADE_TOKEN_SECONDS: Final = 900  # reference 13

PMIN_SECONDS: Final = (60, 300, 3_600)  # reference 15.1: lowest, default, highest
PMAX_SECONDS: Final = (3_600, 21_600, 86_400)
TASK_EXPIRES_SECONDS: Final = (60, 604_800, 604_800)
TASK_SCHEDULE_DAYS: Final = 365  # reference 15.2: how far ahead a task may be scheduled
TASK_DIDS_MAX: Final = 10_000  # device ids that one task names
TASKS_OPEN_MAX: Final = 1_000  # of one device type, that have not ended
SERVER_PROPERTIES_BYTES: Final = 16 * 1024  # reference 15.1: of one device, as JSON
SERVER_PROPERTIES_LEVELS: Final = 5
DEVICE_PROPERTIES_BYTES: Final = 64 * 1024  # what a device may report in all, as JSON
FILTER_PAIRS_MAX: Final = 20
FILTER_MAX_CHARACTERS: Final = 4096
TASK_VALUE_BYTES: Final = 4 * 1024  # of `taskParameters.value`
DEVICE_VALUE_BYTES: Final = 1024  # of a value that is written to a device
PACKAGE_URI_BYTES: Final = 255  # reference 18.4
IMAGE_MAX_BYTES: Final = 64 * 1024 * 1024  # reference 24
IMAGES_MAX: Final = 100  # of one device type
DOWNLOAD_KEPT_HOURS: Final = 24  # reference 18.5: after the end of the device task
AUDIT_DAYS: Final = 365  # reference 28.2
AUDIT_ENTRIES: Final = 100_000
WRONG_TOKEN_TRIES: Final = 20  # reference 28.3: of one unknown token within the window, before its answer is remembered
WRONG_TOKEN_WINDOW_SECONDS: Final = 60

RULE_BODY_BYTES: Final = 16 * 1024  # reference 12.1
RULE_CONDITIONS_MAX: Final = 50
RULE_ACTIONS_MAX: Final = 50
RULES_OF_USER: Final = 1_000
RULE_DESCRIPTION_MAX_CHARACTERS: Final = 1_400
RULE_REQUEST_SECONDS: Final = 10  # reference 12.2: how long the receiver of an httpRequest may take
RULE_REQUEST_ANSWER_BYTES: Final = 64 * 1024  # of its answer; nothing of it is kept
RULE_REQUESTS_AT_ONCE: Final = 16
RULE_LOOP_TRIGGERS: Final = 100  # reference 12.4: of a rule by messages that it caused, within the window
RULE_LOOP_SECONDS: Final = 10
RULE_LOG_ROWS: Final = 20_000  # stored messages that wait in memory for the rules; more are read from the log
RULE_HISTORY_ROWS: Final = 10_000  # messages that one replay or explanation reads
RULE_HISTORY_DAYS: Final = 31
RULE_HISTORY_SECONDS: Final = 3  # of processor time of one replay or explanation
RULE_SIMULATED_DEVICES: Final = 1_000  # that the rule of a replay or explanation watches
RULE_SELECTED_DEVICES: Final = 10_000  # of a user and a type, for a rule with a selector that must look at all of them
RULE_ACTION_MESSAGES: Final = 1_000  # that a rule sends when it triggers once
RULE_ACTIONS_A_MINUTE: Final = 60_000  # Action messages of the rules of one user
RULE_COST_SECONDS: Final = 30.0  # of processor time, of the rules with selectors of one user, in each minute

SCENE_DESCRIPTION_MAX_CHARACTERS: Final = 1_400  # reference 12.5
SCENE_ACTIONS_MAX: Final = 100
SCENE_BODY_BYTES: Final = 16 * 1024
SCENES_OF_USER: Final = 200
SCENE_MESSAGES_MAX: Final = 1_000  # Action messages of one activation

MODELS_OF_USER: Final = 20  # reference 12.6
MODELS_OF_RULES: Final = 200  # of one user's rules
MODEL_SOURCES_MAX: Final = 20
MODEL_BODY_BYTES: Final = 16 * 1024
MODEL_HISTORY_DAYS: Final = 30
MODEL_VALUES_MIN: Final = 50
MODEL_VALUES_MAX: Final = 100_000  # of all sources of one training
MODEL_AHEAD_SECONDS: Final = 7 * 86_400  # the furthest prediction
MODEL_SENSITIVITY: Final = 50
MODEL_TRAINING_SECONDS: Final = 60  # of processor time of one training
MODEL_TRAINING_WAIT_SECONDS: Final = 300  # its priority is low: on a busy machine it waits for others
MODEL_TRAINING_BYTES: Final = 768 * 1024 * 1024  # of address space
MODEL_RETRY_SECONDS: Final = 600  # while there are too few values

TRIALS_OF_ONE_USER: Final = 100  # reference 14.1: that the user created and that are not deleted
TRIALS_PER_DAY: Final = 20  # that one user creates on a day, also those that are deleted by then
TRIAL_MEMBERS: Final = {"administrator": 20, "participant": 500}  # of one trial
TRIAL_DEVICE_TYPES: Final = 20  # of one trial
TRIAL_DEVICES: Final = 2_000  # connected to one trial
TRIAL_DEVICES_OF_ONE: Final = 50  # that one participant connects to a trial
TRIAL_INVITATION_SECONDS: Final = 86_400  # reference 14.3: validity of an invitation to a trial
TRIAL_INVITATIONS_OPEN: Final = 100  # to one trial at a time
TRIAL_INVITATIONS_KEPT: Final = 1_000  # of one trial; of older ones, only those that are open
TRIAL_INVITATIONS_AT_ONCE: Final = 20  # reference 22: as many mails as one user may cause in a minute
TRIAL_SESSIONS: Final = 10_000  # reference 14.5: of one trial
TRIAL_SESSION_DEVICES: Final = 50  # of one session
TRIAL_DOCUMENTS: Final = 1_000  # of one trial and kind: metadata, rules, metadata of rules
TRIAL_DOCUMENT_BYTES: Final = 16 * 1024  # of one, as JSON
TRIAL_KEY_CHARACTERS: Final = 128  # of the key of metadata
SUBSCRIPTION_DESCRIPTION_CHARACTERS: Final = 256  # reference 21.3
SUBSCRIPTIONS_MAX: Final = 1_000  # of one application for one user
CALLBACK_URL_CHARACTERS: Final = 2_000
CALLBACK_SECONDS: Final = 15.0  # reference 11.5
CALLBACK_ANSWER_BYTES: Final = 16 * 1024  # that are read of an answer
CALLBACK_EXCERPT_CHARACTERS: Final = 200  # of a refusal, in the delivery log
CALLBACKS_PER_HOST: Final = 64  # under way at once
CALLBACKS_PER_APPLICATION: Final = 256  # under way at once, whatever their hosts
NOTIFICATIONS_IN_FLIGHT: Final = 5  # reference 11.5: of one subscription
NOTIFICATION_MESSAGES: Final = 100  # reference 11.3
STREAM_RECORDS: Final = 500  # reference 11.3: in one request
RETRY_SECONDS: Final = (5, 300, 1_800, 7_200, 18_000, 36_000, 36_000)  # reference 11.5: after each failure but the last
VALIDATION_HOURS: Final = 24
FAILING_DAYS: Final = 5  # reference 11.2: then a subscription is suspended
DELIVERY_DAYS: Final = 30  # reference 11.5: how long the delivery log is kept
DELIVERY_BYTES: Final = 1024 * 1024 * 1024
REPLAY_NOTIFICATIONS: Final = 1_000  # of one call
WEBHOOK_SECRET_OVERLAP_HOURS: Final = 24  # reference 11.4: while the old secret signs, too
