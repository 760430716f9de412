"""Messages of the open topic space: from a PUBLISH or a will, and to the PUBLISH of each version."""

from typing import Final

import msgspec

from broker.errors import BadRequest
from broker.topics.space import TopicMessage
from protocols.mqtt.answers import MqttAnswers
from protocols.mqtt.fields import Fields
from protocols.mqtt.packets import Publish, PublishWithProperties, Will
from protocols.mqtt.properties import In, changed, decode_properties, encode_properties
from protocols.mqtt.values import NO_PROPERTIES, Properties
from storage.keys import DeviceKey, Milliseconds
from storage.mqtt_sessions import DeliveryRecord
from storage.mqtt_wills import WillRecord

_NO_MORE: Final = b""


def message_of(packet: Publish, now_ms: Milliseconds) -> TopicMessage:
    """Raises BadRequest when the payload is not the text that it is said to be."""
    properties = packet.properties if isinstance(packet, PublishWithProperties) else NO_PROPERTIES
    if properties.payload_format == 1:
        try:
            packet.payload.decode()
        except UnicodeDecodeError as error:
            raise BadRequest from error
    expiry = properties.message_expiry
    return TopicMessage(
        topic=packet.topic,
        payload=packet.payload,
        qos=packet.qos,
        retain=packet.retain,
        properties=_forwarded(properties),
        expires_on=None if expiry is None else Milliseconds(now_ms + expiry * 1000),
    )


def will_record(will: Will, device: DeviceKey, topic: bytes, delay_seconds: int) -> WillRecord:
    """The will of a device, to this topic. Its payload is the text that it is said to be: CONNECT was checked."""
    expiry, properties = will.properties.message_expiry, _forwarded(will.properties)
    return WillRecord(device, topic, will.payload, will.qos, will.retain, properties, expiry, delay_seconds)


def _forwarded(properties: Properties) -> bytes:
    """The properties for the receivers, encoded [MQTT-3.3.2-4, -15, -16, -17, -20]."""
    forwarded = Properties(
        payload_format=properties.payload_format,
        content_type=properties.content_type,
        response_topic=properties.response_topic,
        correlation_data=properties.correlation_data,
        user_properties=properties.user_properties,
    )
    return _NO_MORE if forwarded == NO_PROPERTIES else encode_properties(forwarded)


def packet_of(
    answers: MqttAnswers, delivery: DeliveryRecord, now_ms: Milliseconds, *, packet_id: bytes = b"", dup: bool = False
) -> bytes:
    """The PUBLISH of a delivery; empty when it has expired, or is larger than the peer takes."""
    properties = decode_properties(Fields(delivery.properties), In.PUBLISH) if delivery.properties else NO_PROPERTIES
    if delivery.expires_on is not None:
        left_ms = delivery.expires_on - now_ms
        if left_ms <= 0:
            return b""
        properties = changed(properties, message_expiry=-(-left_ms // 1000))  # [MQTT-3.3.2-6]
    if delivery.subscription_ids:
        properties = changed(properties, subscription_ids=delivery.subscription_ids)
    return answers.publish(
        delivery.topic,
        delivery.payload,
        qos=delivery.qos,
        packet_id=packet_id,
        dup=dup,
        retain=delivery.retain,
        properties=properties,
    )


def with_topic(packet: PublishWithProperties, topic: bytes) -> PublishWithProperties:
    """The packet with the topic that its alias stands for."""
    return msgspec.structs.replace(packet, topic=topic)


def own_time(packet: Publish) -> object:
    """The time of a device's message: the value of the user property `ts` of 5.0, not checked yet; None without one.
    Several of them are no time."""
    if not isinstance(packet, PublishWithProperties):
        return None
    times = [value for name, value in packet.properties.user_properties if name == "ts"]
    return None if not times else times[0] if len(times) == 1 else ""
