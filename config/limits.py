"""The numbers of the specification's Limits chapter and of compatibility.md, each in one place."""

from typing import Final

MAX_DATA_BYTES: Final = 1024  # specification, Sizes and bounds: message size
MAX_MESSAGE_BODY_BYTES: Final = 16 * 1024  # compatibility.md 1.3: POST /messages and /actions
MAX_BODY_BYTES: Final = 1024 * 1024  # compatibility.md 1.3: every other body
MAX_ACTIONS_PER_MESSAGE: Final = 20  # compatibility.md 9.1

PAGE_COUNT_DEFAULT: Final = 100
PAGE_COUNT_MAX: Final = 100
IDS_MAX: Final = 100  # ids in sdids and dids lists
CURSOR_MAX_CHARACTERS: Final = 128  # compatibility.md 9.3

NAME_MAX_CHARACTERS: Final = 64
FORBIDDEN_IN_NAMES: Final = frozenset("<>&'\"")

REGISTRATION_SECONDS: Final = 30  # device channel: register after connecting
PING_SECONDS: Final = 30  # WebSocket: every 30 s on all channels
SILENCE_SECONDS: Final = 90  # WebSocket: no traffic at all closes with 1011
WEBSOCKET_FRAME_BYTES: Final = 64 * 1024
WEBSOCKET_BACKLOG: Final = 1000  # frames that may wait for a slow reader

MQTT_CONNECT_SECONDS: Final = 10
MQTT_PACKET_BYTES: Final = 64 * 1024

USER_TOKEN_SECONDS: Final = 1_209_600
APPLICATION_TOKEN_SECONDS: Final = 86_400
