"""The display texts of a Manifest's units (reference 8.5)."""

import re

_NO_UNIT = "NONE"

# Section 8.5, column by column.
_TEXTS = {
    "SI.METER": "m",
    "SI.KILOGRAM": "kg",
    "SI.GRAM": "g",
    "SI.SECOND": "s",
    "SI.AMPERE": "A",
    "SI.KELVIN": "K",
    "SI.CELSIUS": "°C",
    "SI.MOLE": "mol",
    "SI.CANDELA": "cd",
    "SI.HERTZ": "Hz",
    "SI.NEWTON": "N",
    "SI.PASCAL": "Pa",
    "SI.JOULE": "J",
    "BEATS": "b",
    "BEATS_PER_MINUTE": "b/min",
    "KILO_CALORIE": "J*4.184",
    "PARTS_PER_MILLION": "ppm",
    "SI.WATT": "W",
    "SI.VOLT": "V",
    "SI.OHM": "Ω",
    "SI.COULOMB": "C",
    "SI.FARAD": "F",
    "SI.TESLA": "T",
    "SI.LUX": "lx",
    "SI.LUMEN": "lm",
    "SI.RADIAN": "rad",
    "SI.BIT": "bit",
    "SI.METERS_PER_SECOND": "m/s",
    "SI.METERS_PER_SQUARE_SECOND": "m/s²",
    "SI.SQUARE_METRE": "m²",
    "SI.CUBIC_METRE": "m³",
    "NonSI.BYTE": "byte",
    "NonSI.DEGREE_ANGLE": "°",
    "NonSI.MILLIMETER_OF_MERCURY": "mmHg",
    "NonSI.PERCENT": "%",
    "NonSI.FAHRENHEIT": "°F",
    "NonSI.MINUTE": "min",
    "NonSI.HOUR": "h",
    "NonSI.DAY": "day",
    "NonSI.WEEK": "week",
    "NonSI.MILE": "mi",
    "NonSI.FOOT": "ft",
    "NonSI.INCH": "in",
    "NonSI.POUND": "lb",
    "NonSI.OUNCE": "oz",
    "NonSI.LITER": "L",
    "NonSI.DECIBEL": "dB",
    "NonSI.KILOMETERS_PER_HOUR": "km/h",
    "NonSI.MILES_PER_HOUR": "mph",
    "NonSI.BAR": "bar",
}

_PREFIXES = {
    "QUETTA": "Q",
    "RONNA": "R",
    "YOTTA": "Y",
    "ZETTA": "Z",
    "EXA": "E",
    "PETA": "P",
    "TERA": "T",
    "GIGA": "G",
    "MEGA": "M",
    "KILO": "k",
    "HECTO": "h",
    "DEKA": "da",
    "DECA": "da",
    "DECI": "d",
    "CENTI": "c",
    "MILLI": "m",
    "MICRO": "µ",
    "NANO": "n",
    "PICO": "p",
    "FEMTO": "f",
    "ATTO": "a",
    "ZEPTO": "z",
    "YOCTO": "y",
    "RONTO": "r",
    "QUECTO": "q",
}

_PREFIXED = re.compile(r"SI\.([A-Z]+)\(([A-Za-z_.]+)\)")


def unit_text(unit: str) -> str | None:
    """The text form of a Manifest's `unit`; None for no unit. A unit that is not listed stays as it is written."""
    if unit == _NO_UNIT:
        return None
    if (prefixed := _PREFIXED.fullmatch(unit)) is not None:
        prefix, base = _PREFIXES.get(prefixed[1]), _TEXTS.get(prefixed[2])
        return unit if prefix is None or base is None else prefix + base
    return _TEXTS.get(unit, unit)
