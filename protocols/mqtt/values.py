"""The properties of MQTT 5.0 as a type. properties.py reads and writes them."""

from typing import Final

import msgspec


class Properties(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Properties of a packet; None or empty for an absent one. Times are in seconds."""

    payload_format: int | None = None
    message_expiry: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_ids: tuple[int, ...] = ()
    session_expiry: int | None = None
    assigned_client_id: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_available: int | None = None
    subscription_ids_available: int | None = None
    shared_available: int | None = None


NO_PROPERTIES: Final = Properties()
