"""The table of units, their prefix forms, and texts that the table does not list (reference 8.5)."""

from broker.device_types.units import unit_text
from tests.rows import each_row


@each_row(
    ("name", "text"),
    [
        ("SI.METER", "m"),
        ("SI.KILOGRAM", "kg"),
        ("SI.GRAM", "g"),
        ("SI.SECOND", "s"),
        ("SI.AMPERE", "A"),
        ("SI.KELVIN", "K"),
        ("SI.CELSIUS", "°C"),
        ("SI.MOLE", "mol"),
        ("SI.CANDELA", "cd"),
        ("SI.HERTZ", "Hz"),
        ("SI.NEWTON", "N"),
        ("SI.PASCAL", "Pa"),
        ("SI.JOULE", "J"),
        ("BEATS", "b"),
        ("BEATS_PER_MINUTE", "b/min"),
        ("KILO_CALORIE", "J*4.184"),
        ("PARTS_PER_MILLION", "ppm"),
        ("SI.WATT", "W"),
        ("SI.VOLT", "V"),
        ("SI.OHM", "Ω"),
        ("SI.COULOMB", "C"),
        ("SI.FARAD", "F"),
        ("SI.TESLA", "T"),
        ("SI.LUX", "lx"),
        ("SI.LUMEN", "lm"),
        ("SI.RADIAN", "rad"),
        ("SI.BIT", "bit"),
        ("SI.METERS_PER_SECOND", "m/s"),
        ("SI.METERS_PER_SQUARE_SECOND", "m/s²"),
        ("SI.SQUARE_METRE", "m²"),
        ("SI.CUBIC_METRE", "m³"),
        ("NonSI.BYTE", "byte"),
        ("NonSI.DEGREE_ANGLE", "°"),
        ("NonSI.MILLIMETER_OF_MERCURY", "mmHg"),
        ("NonSI.PERCENT", "%"),
        ("NonSI.FAHRENHEIT", "°F"),
        ("NonSI.MINUTE", "min"),
        ("NonSI.HOUR", "h"),
        ("NonSI.DAY", "day"),
        ("NonSI.WEEK", "week"),
        ("NonSI.MILE", "mi"),
        ("NonSI.FOOT", "ft"),
        ("NonSI.INCH", "in"),
        ("NonSI.POUND", "lb"),
        ("NonSI.OUNCE", "oz"),
        ("NonSI.LITER", "L"),
        ("NonSI.DECIBEL", "dB"),
        ("NonSI.KILOMETERS_PER_HOUR", "km/h"),
        ("NonSI.MILES_PER_HOUR", "mph"),
        ("NonSI.BAR", "bar"),
        ("NONE", None),
    ],
)
def test_listed_unit(name: str, text: str | None) -> None:
    assert unit_text(name) == text


@each_row(
    ("prefix", "text"),
    [
        ("QUETTA", "Q"),
        ("RONNA", "R"),
        ("YOTTA", "Y"),
        ("ZETTA", "Z"),
        ("EXA", "E"),
        ("PETA", "P"),
        ("TERA", "T"),
        ("GIGA", "G"),
        ("MEGA", "M"),
        ("KILO", "k"),
        ("HECTO", "h"),
        ("DEKA", "da"),
        ("DECA", "da"),
        ("DECI", "d"),
        ("CENTI", "c"),
        ("MILLI", "m"),
        ("MICRO", "µ"),
        ("NANO", "n"),
        ("PICO", "p"),
        ("FEMTO", "f"),
        ("ATTO", "a"),
        ("ZEPTO", "z"),
        ("YOCTO", "y"),
        ("RONTO", "r"),
        ("QUECTO", "q"),
    ],
)
def test_prefix_form(prefix: str, text: str) -> None:
    assert unit_text(f"SI.{prefix}(SI.METER)") == f"{text}m"


def test_prefix_of_a_unit_outside_si() -> None:
    assert unit_text("SI.MEGA(NonSI.BYTE)") == "Mbyte"


@each_row(
    "unit",
    [
        "furlong",
        "SI.SMOOT",
        "si.meter",
        "NonSI.PARSEC",
        "SI.KILO(SI.SMOOT)",
        "SI.LOTS(SI.METER)",
        "SI.KILO(SI.METER",
        "SI.KILO(SI.KILO(SI.METER))",
        "SI.KILO(NONE)",
        "m",
        "µmol/m²",
    ],
)
def test_unlisted_unit_is_shown_as_written(unit: str) -> None:
    assert unit_text(unit) == unit
