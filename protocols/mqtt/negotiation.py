"""Properties of CONNACK for a client that speaks 5.0 (MQTT 5.0, 3.2.2.3; reference 16.2)."""

from config.limits import MQTT_TOPIC_ALIASES
from config.settings import Mqtt
from protocols.mqtt.packets import MQTT_5, Connect
from protocols.mqtt.session import RECEIVE_MAXIMUM
from protocols.mqtt.values import Properties


def keep_alive(connect: Connect, settings: Mqtt) -> int:
    """The keep-alive of the connection in seconds; 0 is none. Only a client that speaks 5.0 can be given a shorter one
    than it asked for."""
    asked, longest = connect.keep_alive_seconds, settings.keep_alive_max_seconds
    if connect.level < MQTT_5 or not longest:
        return asked
    return min(asked or longest, longest)


def session_seconds(connect: Connect, settings: Mqtt) -> int:
    """Seconds that the client wants its session to outlive the connection. Version 3 cannot say how long."""
    if settings.persistent_sessions == "off":
        return 0
    if connect.level < MQTT_5:
        return 0 if connect.is_clean else settings.session_max_seconds
    return min(connect.properties.session_expiry or 0, settings.session_max_seconds)


def connack_properties(connect: Connect, client_id: str, settings: Mqtt) -> Properties:
    """`client_id` is the client's own, or the one that it is given."""
    granted = keep_alive(connect, settings)
    is_open = int(settings.topics == "open")
    return Properties(
        session_expiry=session_seconds(connect, settings),
        receive_maximum=RECEIVE_MAXIMUM,
        retain_available=is_open,
        maximum_packet_size=settings.packet_bytes,
        assigned_client_id=None if connect.client_id else client_id,
        topic_alias_maximum=MQTT_TOPIC_ALIASES if is_open else 0,
        wildcard_available=is_open,
        subscription_ids_available=is_open,
        shared_available=is_open,
        server_keep_alive=None if granted == connect.keep_alive_seconds else granted,
    )
