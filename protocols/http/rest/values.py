"""/values: the newest values as Prometheus scrapes them (reference 9.11)."""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Final

from prometheus_client.core import GaugeMetricFamily, Metric

from broker.accounts.permissions import Permission
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller, TokenKind
from broker.device_types.room import DeviceTypesRoom
from broker.devices.listing import DeviceFilter
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.errors import REQUIRED, DeviceNotFound, PermissionDenied, ValidationFailed, invalid, too_high, too_low
from broker.messages.room import MessagesRoom
from broker.messages.values import FieldValue
from config.limits import IDS_MAX, VALUES_DEVICES, VALUES_MAX_AGE_SECONDS, VALUES_SAMPLES
from protocols.exposition import exposition_form
from protocols.http.answers import Answer
from protocols.http.calls import ANY_TOKEN, NOTHING, Answers, Chapter, Counted, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.request_context import current_request
from protocols.http.schema import Id, Shape, TypeId, about, ids, integer

_PREFIX: Final = "trunkline_value_"
_NEWEST: Final = "trunkline_newest_value_timestamp_seconds"
_LABELS: Final = ("device", "did", "type")
#: No character of a metric's name, but for letters, digits and `_`.
_OTHER: Final = re.compile(r"[^a-zA-Z0-9_]+")
#: The words of units in the names of metrics, as Prometheus has them: https://prometheus.io/docs/practices/naming/
_UNITS: Final = {
    "°C": "celsius",
    "°F": "fahrenheit",
    "K": "kelvin",
    "%": "percent",
    "m": "meters",
    "km": "kilometers",
    "cm": "centimeters",
    "mm": "millimeters",
    "mi": "miles",
    "ft": "feet",
    "in": "inches",
    "g": "grams",
    "kg": "kilograms",
    "lb": "pounds",
    "oz": "ounces",
    "s": "seconds",
    "ms": "milliseconds",
    "min": "minutes",
    "h": "hours",
    "day": "days",
    "week": "weeks",
    "A": "amperes",
    "mA": "milliamperes",
    "V": "volts",
    "mV": "millivolts",
    "W": "watts",
    "kW": "kilowatts",
    "J": "joules",
    "Hz": "hertz",
    "N": "newtons",
    "Pa": "pascals",
    "hPa": "hectopascals",
    "bar": "bars",
    "mmHg": "millimeters_of_mercury",
    "lx": "lux",
    "lm": "lumens",
    "cd": "candelas",
    "Ω": "ohms",
    "T": "teslas",
    "rad": "radians",
    "°": "degrees",
    "m/s": "meters_per_second",
    "km/h": "kilometers_per_hour",
    "mph": "miles_per_hour",
    "m/s²": "meters_per_square_second",
    "m²": "square_meters",
    "m³": "cubic_meters",
    "L": "liters",
    "ppm": "parts_per_million",
    "dB": "decibels",
    "bit": "bits",
    "byte": "bytes",
    "b/min": "beats_per_minute",
}


class _Values(Shape):
    sdids: Annotated[tuple[str, ...], ids("Only these devices", longest=IDS_MAX, example=samples.DID)] | None = None
    sdtid: Annotated[TypeId, about("Only devices of this type")] | None = None
    uid: Annotated[Id, about("Whose devices; an application must name a user, or devices")] | None = None
    max_age: Annotated[int, integer("Seconds: older values are left out", lowest=1, highest=VALUES_MAX_AGE_SECONDS)] = (
        3_600
    )
    timestamps: Annotated[bool, about("Whether each sample has the time of its message")] = False


class _Collected:
    """Families, as prometheus_client's encoders want them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class ValueCalls(RestCalls):
    chapter = Chapter(
        "Values",
        "The newest values of devices as numbers, in the text form that Prometheus and its relatives scrape.",
    )

    def __init__(
        self, accounts: AccountsRoom, devices: DevicesRoom, device_types: DeviceTypesRoom, messages: MessagesRoom
    ) -> None:
        self._permissions = accounts.permissions
        self._users = accounts.users
        self._devices = devices.registry
        self._lists = devices.lists
        self._readers = devices.readers
        self._types = device_types.catalog
        self._values = messages.values

    @RestCall(
        "GET",
        "/values",
        tokens=ANY_TOKEN,
        on=NOTHING,
        counted=Counted.NOT,
        summary="The newest values, for Prometheus",
        about="Each field is a metric of its own, called like the field and its unit: "
        "`trunkline_value_temperature_celsius`. Its labels are the device's name, id and type, the field's path and "
        "the unit as in the Manifest. Numbers and truth values come, texts do not. A value older than `maxAge` is left "
        "out: it goes stale. `trunkline_newest_value_timestamp_seconds` says when a device was heard last.",
        answers=Answers(
            type=Annotated[str, about("Lines of text")],
            content_type="text/plain",
            also=("application/openmetrics-text",),
            about="Prometheus's text form, or OpenMetrics where `Accept` asks for it",
            example='trunkline_value_temperature_celsius{device="Attic",field="temperature",unit="°C"} 21.5',
        ),
        refusals={429: "More than 10 calls in a minute."},
    )
    async def values(self, caller: Caller, query: _Values) -> Answer:
        self._values.count(caller)
        if query.max_age < 1:
            raise ValidationFailed.of("maxAge", too_low(1))
        if query.max_age > VALUES_MAX_AGE_SECONDS:
            raise ValidationFailed.of("maxAge", too_high(VALUES_MAX_AGE_SECONDS))
        devices = await self._chosen(caller, query)
        self._readers.note(caller, devices)
        values = await self._values.of(devices, max_age_ms=query.max_age * 1000)
        if len(values) > VALUES_SAMPLES:
            raise ValidationFailed.of("sdids", invalid(f"more than {VALUES_SAMPLES} values: name some of the devices"))
        encode, content_type = exposition_form(current_request().header(b"accept"))
        return Answer(encode(_Collected(_families(values, with_ts=query.timestamps))), content_type=content_type)

    async def _chosen(self, caller: Caller, query: _Values) -> Sequence[Device]:
        """Raises DeviceNotFound, DeviceTypeNotFound, UserNotFound, PermissionDenied, ValidationFailed."""
        reach = await self._permissions.reach(caller)
        if query.sdids:
            named = await self._devices.find_all(query.sdids)
            found = [device for device in named.values() if device is not None]
            if len(found) < len(named):
                raise DeviceNotFound
            for device in found:
                if not reach.allows(device, Permission.READ):
                    raise PermissionDenied(f"READ on device {device.id}")
        elif caller.device is not None:
            found = [await self._devices.get(caller.device)]
        else:
            found = await self._of_user(caller, query)
        if query.sdtid is not None:
            type_key = (await self._types.find(query.sdtid)).key
            found = [device for device in found if device.type_key == type_key]
        if len(found) > VALUES_DEVICES:
            raise ValidationFailed.of("sdids", invalid(f"more than {VALUES_DEVICES} devices: name some, or a type"))
        return found

    async def _of_user(self, caller: Caller, query: _Values) -> list[Device]:
        if caller.kind is TokenKind.APPLICATION and query.uid is None:
            raise ValidationFailed.of("uid", REQUIRED)
        user = await self._users.find(query.uid or "self", caller)
        chosen = DeviceFilter(device_type=query.sdtid)
        listed, _ = await self._lists.page(caller, user.key, chosen, offset=0, count=VALUES_DEVICES + 1)
        return [one.device for one in listed]


def _families(values: Sequence[FieldValue], *, with_ts: bool) -> Iterable[Metric]:
    families: dict[str, GaugeMetricFamily] = {}
    newest: dict[str, tuple[list[str], int]] = {}
    for one in values:
        device = one.device
        labels = [device.record.name, device.id, device.type.record.unique_name]
        name = _name(one.field, one.unit)
        if (family := families.get(name)) is None:
            about_it = "The newest value of this field, by device."
            family = families[name] = GaugeMetricFamily(name, about_it, labels=(*_LABELS, "field", "unit"))
        ts = one.ts / 1000 if with_ts else None
        family.add_metric([*labels, one.field, one.unit], one.value, timestamp=ts)
        newest[device.id] = labels, max(one.ts, newest.get(device.id, ((), 0))[1])
    yield from families.values()
    heard = GaugeMetricFamily(_NEWEST, "The time of the newest of these values, by device.", labels=_LABELS)
    for labels, ts_ms in newest.values():
        heard.add_metric(labels, ts_ms / 1000)
    yield heard


def _name(field: str, unit: str) -> str:
    """The metric of a field: two fields of one name differ in their label `field`."""
    name = _PREFIX + _OTHER.sub("_", field).strip("_")
    word = _UNITS.get(unit)
    return name if word is None or name.endswith(f"_{word}") else f"{name}_{word}"
