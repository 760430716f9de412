"""Plausible measurements for any device type: smooth in time, and different for each device."""

from math import pi, sin
from zlib import crc32

from broker.device_types.manifest import Field, Manifest, ValueClass
from protocols.cli.simulated.simulation import Readings

_SLOW_SECONDS, _QUICK_SECONDS = 300, 37
_SECONDS_A_DAY = 86_400

# The range of a field by its name; other fields take the bounds of their Manifest.
_RANGES = {
    "temperature": (18.0, 24.0),
    "target": (20.0, 22.0),
    "temp": (68.0, 75.0),
    "humidity": (40.0, 60.0),
    "pressure": (100_800.0, 101_900.0),
    "speed": (0.0, 9.0),
    "direction": (150.0, 290.0),
    "intensity": (30.0, 100.0),
    "volume": (5.0, 25.0),
    "channel": (1.0, 20.0),
    "battery": (60.0, 95.0),
}
_TEXTS = {"mode": ("auto", "heat", "cool")}
_COUNTERS = {"steps": 1.4, "distance": 1.0}  # per second, since midnight UTC
_RARELY_TRUE = {"onFire", "open"}


def readings_of(manifest: Manifest, device: str) -> Readings:
    """A function from a time, in seconds since the epoch, to the data that the device measures then."""

    def measure(now: float) -> dict[str, object]:
        return {field.name: _value(field, now, device) for field in manifest.fields}

    return measure


def _value(field: Field, now: float, device: str) -> object:
    if field.is_group:
        return {child.name: _value(child, now, device) for child in field.children}
    value = _single(field, now, crc32(f"{device}.{field.name}".encode()) / 2**32 * 2 * pi)
    return [value] if field.is_collection else value


def _single(field: Field, now: float, phase: float) -> object:
    wave = 0.8 * sin(2 * pi * now / _SLOW_SECONDS + phase) + 0.2 * sin(2 * pi * now / _QUICK_SECONDS + phase)
    match field.value_class:
        case ValueClass.BOOLEAN:
            return wave > (0.9 if field.name in _RARELY_TRUE else 0.0)
        case ValueClass.STRING:
            texts = _TEXTS.get(field.name, ("ok",))
            return texts[int(now / _SLOW_SECONDS) % len(texts)]
    if field.name in _COUNTERS:
        number = now % _SECONDS_A_DAY * _COUNTERS[field.name]
    else:
        low, high = _range(field)
        number = low + (high - low) * (wave + 1) / 2
    return round(number) if field.value_class in {ValueClass.INTEGER, ValueClass.LONG} else round(number, 2)


def _range(field: Field) -> tuple[float, float]:
    if field.name in _RANGES:
        return _RANGES[field.name]
    low, high = 0.0, 100.0
    for entry in field.metadata:
        if isinstance(entry.value, int | float):
            if entry.type == f"MIN_VALUE_{field.value_class}".upper():
                low = float(entry.value)
            elif entry.type == f"MAX_VALUE_{field.value_class}".upper():
                high = float(entry.value)
    return low, high
