"""Quantities as Home Assistant names them: the `device_class`, the unit and the `state_class` of a sensor.

Home Assistant has a list of units for each class, and converts between them. A unit that it does not know stays as it
is, without a class (its documents: "Sensor entity", available device classes).
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

MEASUREMENT: Final = "measurement"
_INCREASING: Final = "total_increasing"
_ANGLE: Final = "measurement_angle"


class Quantity(msgspec.Struct, frozen=True):
    """None: Home Assistant is told nothing of it."""

    device_class: str | None = None
    unit: str | None = None
    state_class: str = MEASUREMENT


def _units(device_class: str, *units: str, state_class: str = MEASUREMENT) -> dict[str, Quantity]:
    return {unit: Quantity(device_class, unit, state_class) for unit in units}


_BY_UNIT: Final[Mapping[str, Quantity]] = {
    **_units("temperature", "°C", "°F", "K"),
    **_units("pressure", "Pa", "hPa", "kPa", "bar", "cbar", "mbar", "mmHg", "inHg", "psi"),
    **_units("power", "mW", "W", "kW", "MW", "GW", "TW"),
    **_units("voltage", "µV", "mV", "V", "kV", "MV"),
    **_units("current", "mA", "A"),
    **_units("energy", "J", "kJ", "MJ", "GJ", "mWh", "Wh", "kWh", "MWh", "GWh", "TWh", state_class=_INCREASING),
    **_units("frequency", "Hz", "kHz", "MHz", "GHz"),
    **_units("illuminance", "lx"),
    **_units("irradiance", "W/m²"),
    **_units("distance", "mm", "cm", "m", "km", "in", "ft", "yd", "mi"),
    **_units("speed", "mm/s", "m/s", "km/h", "mph", "ft/s", "kn"),
    **_units("weight", "µg", "mg", "g", "kg", "oz", "lb"),
    **_units("volume_storage", "mL", "L", "m³", "gal", "ft³"),
    **_units("volume_flow_rate", "m³/h", "L/min", "mL/s"),
    **_units("area", "mm²", "cm²", "m²", "km²"),
    **_units("duration", "ms", "s", "min", "h", "d"),
    **_units("data_size", "bit", "kbit", "Mbit", "Gbit", "B", "kB", "MB", "GB", "KiB", "MiB", "GiB"),
    **_units("data_rate", "bit/s", "kbit/s", "Mbit/s", "B/s", "kB/s", "MB/s"),
    **_units("apparent_power", "VA"),
    **_units("precipitation_intensity", "mm/h", "mm/d"),
    **_units("sound_pressure", "dB", "dBA"),
    **_units("signal_strength", "dBm"),
    "day": Quantity("duration", "d"),
    "byte": Quantity("data_size", "B"),
}

#: By unit: words of a field's path, each with the class that the unit has there.
_BY_WORD: Final[Mapping[str, tuple[tuple[re.Pattern[str], Quantity], ...]]] = {
    unit: tuple((re.compile(words, re.IGNORECASE), quantity) for words, quantity in rows)
    for unit, rows in {
        "%": (
            ("batter", Quantity("battery", "%")),
            ("humid", Quantity("humidity", "%")),
            ("moist|soil", Quantity("moisture", "%")),
        ),
        "ppm": (
            ("co2|carbon_?dioxide", Quantity("carbon_dioxide", "ppm")),
            ("carbon_?monoxide", Quantity("carbon_monoxide", "ppm")),
            ("voc", Quantity("volatile_organic_compounds_parts", "ppm")),
        ),
        "µg/m³": (
            ("pm_?2_?5", Quantity("pm25", "µg/m³")),
            ("pm_?10", Quantity("pm10", "µg/m³")),
            ("pm_?1", Quantity("pm1", "µg/m³")),
        ),
        "dB": (("rssi|signal", Quantity("signal_strength", "dB")),),
        "°": (("wind.*dir", Quantity("wind_direction", "°", _ANGLE)),),
        **{unit: (("wind", Quantity("wind_speed", unit)),) for unit in ("m/s", "km/h", "mph", "kn", "ft/s")},
    }.items()
}


def quantity_of(path: str, unit: str | None) -> Quantity:
    """The quantity of a number at this dotted path, whose unit has this text."""
    if unit is None:
        return Quantity()
    for words, quantity in _BY_WORD.get(unit, ()):
        if words.search(path):
            return quantity
    return _BY_UNIT.get(unit, Quantity(unit=unit))
