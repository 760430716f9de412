"""Answers of devices in every format of reference 18.3, and malformed ones."""

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.device_management.sessions import Reading, ResourcePath, ResourceValue, latest
from protocols.coap.lwm2m.formats.content import ANSWER_BYTES, decode_content, encode_plain_text
from protocols.coap.lwm2m.formats.values import MAX_VALUES, UnreadablePayload
from protocols.coap.lwm2m.kinds import Kind, KindOf, kind_of, kind_of_either
from protocols.coap.lwm2m.links import parse_discovered, parse_links, parse_offer
from storage.keys import Milliseconds
from tests.factories import NOW_MS
from tests.protocols.coap.lwm2m.device import LWM2M_JSON, OPAQUE, SENML_CBOR, SENML_JSON, TEXT, TLV, tlv
from tests.rows import each_row

_NOW = NOW_MS // 1000
DEVICE, POWER, LEVEL, TIME = (3, 0), (3, 0, 7), (3, 0, 9), (3, 0, 13)

#: The Device object of the examples in LwM2M 1.0, 6.4.3.1, byte for byte.
EXAMPLE_TLV = bytes.fromhex(
    "C800144F70656E204D6F62696C6520416C6C69616E6365 C801164C69676874776569676874204D324D20436C69656E74"
    "C80209333435303030313233 C303312E30 8606410001410105 88070842000ED842011388 870841007D42010384"
    "C10964 C10A0F 830B410000 C40D5182428F C60E2B30323A3030 C11055"
)
EXAMPLE: Mapping[ResourcePath, object] = {
    (3, 0, 0): "Open Mobile Alliance",
    (3, 0, 1): "Lightweight M2M Client",
    (3, 0, 2): "345000123",
    (3, 0, 3): "1.0",
    (3, 0, 6): [1, 5],
    (3, 0, 7): [3800, 5000],
    (3, 0, 8): [125, 900],
    (3, 0, 9): 100,
    (3, 0, 10): 15,
    (3, 0, 11): [0],
    (3, 0, 13): 1_367_491_215_000,
    (3, 0, 14): "+02:00",
    (3, 0, 16): "U",
}
_RECORDS: list[tuple[str, object]] = [
    ("0", "Open Mobile Alliance"),
    ("1", "Lightweight M2M Client"),
    ("2", "345000123"),
    ("3", "1.0"),
    *[("6/0", 1), ("6/1", 5), ("7/0", 3800), ("7/1", 5000), ("8/0", 125), ("8/1", 900)],
    *[("9", 100), ("10", 15), ("11/0", 0), ("13", 1_367_491_215), ("14", "+02:00"), ("16", "U")],
]


def senml(base: str | None = "/3/0/") -> list[dict[str, Any]]:
    records = [{"n": name, "vs" if isinstance(value, str) else "v": value} for name, value in _RECORDS]
    return [{"bn": base, **records[0]}, *records[1:]] if base is not None else records


def lwm2m_json(base: str | None = "/3/0/") -> bytes:
    entries = [{"n": name, "sv" if isinstance(value, str) else "v": value} for name, value in _RECORDS]
    return json.dumps({"e": entries} if base is None else {"bn": base, "e": entries}).encode()


LABELS = {"bn": -2, "bt": -3, "n": 0, "t": 6, "v": 2, "vs": 3, "vb": 4, "vd": 8}


def senml_cbor(records: list[dict[str, Any]]) -> bytes:
    return cbor2.dumps([{LABELS[name]: value for name, value in record.items()} for record in records])


def values_of(
    format_: int | None, payload: bytes, asked: ResourcePath, kinds: KindOf = kind_of
) -> Mapping[ResourcePath, ResourceValue]:
    """The newest values, whatever their times."""
    return latest(decode_content(format_, payload, asked, NOW_MS, kinds))


def _at(ts: int | None, values: Mapping[ResourcePath, ResourceValue]) -> Reading:
    return Reading(None if ts is None else Milliseconds(ts), values)


class TestAnObjectInstance:
    @each_row(
        ("format_", "payload"),
        [
            (TLV, EXAMPLE_TLV),
            (1542, EXAMPLE_TLV),
            (None, EXAMPLE_TLV),
            (TLV, tlv((0, 0, EXAMPLE_TLV))),
            (LWM2M_JSON, lwm2m_json()),
            (1543, lwm2m_json("/3/0")),
            (50, lwm2m_json(None)),
            (SENML_JSON, json.dumps(senml()).encode()),
            (SENML_JSON, json.dumps(senml(None)).encode()),
            (50, json.dumps(senml("/3/0")).encode()),
            (SENML_CBOR, senml_cbor(senml())),
            (60, senml_cbor(senml())),
        ],
        ids=[
            "TLV",
            "old TLV",
            "no content-format",
            "TLV around the instance",
            "LWM2M JSON",
            "old LWM2M JSON without the last slash",
            "LWM2M JSON as JSON without a base name",
            "SenML JSON",
            "SenML JSON without a base name",
            "SenML JSON as JSON without the last slash",
            "SenML CBOR",
            "SenML CBOR as CBOR",
        ],
    )
    def test_in_every_format(self, format_: int | None, payload: bytes) -> None:
        """int-203, int-204, int-231, int-232: the Device object of the specification's examples."""
        assert values_of(format_, payload, DEVICE) == EXAMPLE

    def test_with_bytes_booleans_and_floats(self) -> None:
        records: list[dict[str, Any]] = [
            {"bn": "/", "n": "6/0/0", "v": 50.5},
            {"n": "6/0/4", "vd": b"\x01\x02"},
            {"n": "6/0/5", "v": 5},
        ]
        expected = {(6, 0, 0): 50.5, (6, 0, 4): b"\x01\x02", (6, 0, 5): 5000}
        assert values_of(SENML_CBOR, senml_cbor(records), (6, 0)) == expected
        text = json.dumps([{**record, **({"vd": "AQI"} if "vd" in record else {})} for record in records])
        assert values_of(SENML_JSON, text.encode(), (6, 0)) == expected
        plain = tlv((3, 0, struct.pack(">f", 50.5)), (3, 4, b"\x01\x02"), (3, 5, b"\x05"))
        assert values_of(TLV, plain, (6, 0)) == expected
        assert values_of(TLV, tlv((3, 4, b"\1")), (5, 0)) == {(5, 0, 4): True}

    def test_with_floats_of_eight_bytes_and_ipso(self) -> None:
        found = values_of(TLV, tlv((3, 5700, struct.pack(">d", 21.5)), (3, 5701, b"Cel")), (3303, 0))
        assert found == {(3303, 0, 5700): 21.5, (3303, 0, 5701): "Cel"}

    def test_with_resources_of_unknown_types(self) -> None:
        """Issue 44, 5: TLV keeps the bytes, of which none says whether it is a text or a number."""
        values = {1: b"abc", 2: b"\x30", 3: b"M", 4: b"\x00\x01\x02\x03", 5: struct.pack(">f", 21.5), 6: b""}
        found = values_of(TLV, tlv(*((3, number, value) for number, value in values.items())), (4242, 0))
        assert found == {(4242, 0, number): value for number, value in values.items()}
        assert values_of(SENML_JSON, b'[{"n":"/4242/0/1","vb":true}]', (4242, 0)) == {(4242, 0, 1): True}

    def test_with_unsigned_numbers(self) -> None:
        assert values_of(TLV, tlv((3, 13, b"\xc8")), (1, 0)) == {(1, 0, 13): 200}
        with pytest.raises(UnreadablePayload, match="from 0 on"):
            values_of(SENML_JSON, b'[{"n":"/1/0/13","v":-1}]', (1, 0))

    def test_a_time_fits_in_milliseconds(self) -> None:
        assert values_of(SENML_JSON, b'[{"n":"/3/0/13","v":1500000000}]', TIME) == {TIME: 1_500_000_000_000}
        with pytest.raises(UnreadablePayload, match="which should be a"):
            values_of(SENML_JSON, b'[{"n":"/3/0/13","v":9300000000000000}]', TIME)

    def test_with_resources_that_a_model_describes(self) -> None:
        """The registry comes after what describes them."""
        table: dict[ResourcePath, Kind] = {(4242, 0, 1): Kind.OPAQUE, (4242, 0, 2): Kind.FLOAT, LEVEL: Kind.STRING}

        def described(path: ResourcePath) -> Kind | None:
            return table.get(path)

        payload = tlv((3, 1, b"abc"), (3, 2, struct.pack(">f", 1.5)))
        assert values_of(TLV, payload, (4242, 0), described) == {(4242, 0, 1): b"abc", (4242, 0, 2): 1.5}
        assert values_of(TEXT, b"1.5", (4242, 0, 2), described) == {(4242, 0, 2): 1.5}
        assert values_of(TEXT, b"80", LEVEL, kind_of_either(described)) == {LEVEL: "80"}
        with pytest.raises(UnreadablePayload, match="which should be a number"):
            values_of(TEXT, b"much", (4242, 0, 2), described)

    @each_row("number", ["9" * 400, "-" + "9" * 400, str(2**64), "1e300"])
    @each_row("path", [LEVEL, TIME])
    def test_a_number_beyond_64_bits_is_unreadable(self, path: ResourcePath, number: str) -> None:
        """JSON has integers that no double and no resource holds."""
        text = "/".join(map(str, path))
        for format_, payload in (
            (SENML_JSON, '[{"n":"/%s","v":%s}]'),
            (LWM2M_JSON, '{"bn":"/","e":[{"n":"%s","v":%s}]}'),
        ):
            with pytest.raises(UnreadablePayload, match="which should be a"):
                values_of(format_, (payload % (text, number)).encode(), DEVICE)

    @each_row(
        ("tagged", "value"),
        [
            (cbor2.CBORTag(4, [-2, 2150]), 21.5),
            (cbor2.CBORTag(5, [-1, 43]), 21.5),
            (cbor2.CBORTag(2, b"\x15"), 21.0),
            (cbor2.CBORTag(55_799, 21.5), 21.5),
        ],
    )
    def test_numbers_with_tags_of_cbor(self, tagged: object, value: float) -> None:
        payload = cbor2.dumps(cbor2.CBORTag(55_799, [{-2: "/3303/0/", 0: "5700", 2: tagged}]))
        assert values_of(SENML_CBOR, payload, (3303, 0)) == {(3303, 0, 5700): value}

    @each_row("path", [(3303, 0, 5700), (4242, 0, 1)])
    def test_what_no_number_and_no_text_holds_is_named(self, path: ResourcePath) -> None:
        name = "/".join(map(str, path))
        for value in (math.nan, math.inf, cbor2.CBORTag(4, [999, 1])):
            with pytest.raises(UnreadablePayload, match=f"/{name} that is not finite"):
                values_of(SENML_CBOR, cbor2.dumps([{0: f"/{name}", 2: value}]), path[:2])
        with pytest.raises(UnreadablePayload, match=f"/{name} with half of a surrogate pair"):
            values_of(SENML_CBOR, cbor2.dumps([{0: f"/{name}", 3: "xxx"}]).replace(b"xxx", b"\xed\xa0\x80"), path[:2])

    def test_a_text_ends_before_its_last_nul(self) -> None:
        """Issue 44, 12: a version that ends with one would never be the version of an image."""
        version = (3, 0, 3)
        for format_, payload in (
            (TLV, tlv((3, 3, b"2.0\0"))),
            (TEXT, b"2.0\0"),
            (SENML_JSON, b'[{"n":"/3/0/3","vs":"2.0\\u0000"}]'),
            (LWM2M_JSON, b'{"bn":"/3/0/3","e":[{"sv":"2.0\\u0000"}]}'),
        ):
            asked = version if format_ == TEXT else DEVICE
            assert values_of(format_, payload, asked) == {version: "2.0"}

    def test_without_any_resource(self) -> None:
        assert values_of(TLV, b"", DEVICE) == {}
        assert values_of(LWM2M_JSON, b'{"e":[]}', DEVICE) == {}
        assert values_of(SENML_JSON, b"[]", DEVICE) == {}

    def test_several_instances_stay_in_their_order(self) -> None:
        records = [{"bn": "/3/0/7/", "n": str(number), "v": number * 10} for number in (2, 0, 10)]
        assert values_of(SENML_JSON, json.dumps(records).encode(), DEVICE) == {POWER: [0, 20, 100]}
        assert values_of(TLV, tlv((2, 7, b"")), DEVICE) == {POWER: []}


class TestTimes:
    """Issue 44, 4: RFC 8428, 4.5.3. The same for all formats with records."""

    def test_the_example_of_the_standard_has_the_newest_first(self) -> None:
        records = [{"bn": "/3303/0/", "bt": _NOW, "n": "5700", "v": 25, "t": -5}]
        records += [{"n": "5700", "v": 24, "t": -35}, {"n": "5700", "v": 23, "t": -65}]
        assert decode_content(SENML_JSON, json.dumps(records).encode(), (), NOW_MS) == [
            _at(NOW_MS - 65_000, {(3303, 0, 5700): 23.0}),
            _at(NOW_MS - 35_000, {(3303, 0, 5700): 24.0}),
            _at(NOW_MS - 5_000, {(3303, 0, 5700): 25.0}),
        ]
        assert list(decode_content(SENML_CBOR, senml_cbor(records), (), NOW_MS)) == list(
            decode_content(SENML_JSON, json.dumps(records).encode(), (), NOW_MS)
        )

    def test_lwm2m_json(self) -> None:
        document = {"bn": "/3/0/", "bt": _NOW, "e": [{"n": "9", "v": 80, "t": -5}, {"n": "9", "v": 40, "t": -3000}]}
        found = decode_content(LWM2M_JSON, json.dumps(document).encode(), DEVICE, NOW_MS)
        assert found == [_at(NOW_MS - 3_000_000, {LEVEL: 40}), _at(NOW_MS - 5_000, {LEVEL: 80})]

    @each_row(
        ("base", "offset", "ts"),
        [
            (0, 0, None),
            (0, -5, NOW_MS - 5_000),
            (0, -0.25, NOW_MS - 250),
            (-60, 5, NOW_MS - 55_000),
            (0, 2**28, 2**28 * 1000),
            (_NOW, -5, NOW_MS - 5_000),
            (_NOW, 0, None),
            # A value ahead of the clock counts as present, and keeps no later one out.
            (0, 5, None),
            (0, 2**28 - 1, None),
            (253_402_300_799, 0, None),  # the year 9999
            (-62_135_596_800, 0, 0),  # relative to now: the year 55
        ],
    )
    def test_relative_and_absolute(self, base: float, offset: float, ts: int | None) -> None:
        for format_, payload in _in_every_format([(LEVEL, base, offset, 80)]):
            assert decode_content(format_, payload, (), NOW_MS) == [_at(ts, {LEVEL: 80})]

    @each_row("time", ["x", None, True, [1], math.nan, math.inf, 1e300, -1e13])
    @each_row("member", ["bt", "t"])
    def test_what_is_no_time_is_unreadable(self, member: str, time: object) -> None:
        record = {"n": "/3/0/9", "v": 80, member: time}
        with pytest.raises(UnreadablePayload, match="a time at /3/0/9"):
            decode_content(SENML_CBOR, senml_cbor([record]), (), NOW_MS)
        if not isinstance(time, float) or math.isfinite(time):
            with pytest.raises(UnreadablePayload, match="a time at /3/0/9"):
                decode_content(SENML_JSON, json.dumps([record]).encode(), (), NOW_MS)

    def test_instances_stay_what_they_were(self) -> None:
        instances = [((3, 0, 7, 0), 0, -9, 3700), ((3, 0, 7, 1), 0, -9, 5000), ((3, 0, 7, 0), 0, -1, 3800)]
        for format_, payload in _in_every_format(instances):
            assert decode_content(format_, payload, (), NOW_MS) == [
                _at(NOW_MS - 9_000, {POWER: [3700, 5000]}),
                _at(NOW_MS - 1_000, {POWER: [3800, 5000]}),
            ]

    @given(
        st.dictionaries(
            st.tuples(
                st.sampled_from([(3, 0, 9), (3, 0, 10), (3, 0, 7, 0), (3, 0, 7, 1)]),
                st.integers(-(10**9), -1) | st.integers(2**28 * 1000, NOW_MS - 1),
            ),
            st.integers(-(2**31), 2**31),
            min_size=1,
            max_size=8,
        ),
        st.data(),
    )
    def test_the_same_readings_in_any_order_and_format_are_the_same(
        self, values: dict[tuple[ResourcePath, int], int], data: st.DataObject
    ) -> None:
        records = []
        for (path, at_ms), value in values.items():
            # Some of the time is in the base; a whole number of seconds, so that the sum is exact.
            base = data.draw(st.sampled_from([0, at_ms // 1000]))
            records.append((path, base, at_ms / 1000 - base, value))
        found = [
            decode_content(format_, payload, (), NOW_MS)
            for _ in range(3)
            for format_, payload in _in_every_format(data.draw(st.permutations(records)))
        ]
        assert all(one == found[0] for one in found)
        expected: dict[int, dict[ResourcePath, ResourceValue]] = {}
        for (path, at_ms), value in values.items():
            if len(path) == len(LEVEL):
                expected.setdefault(at_ms + (NOW_MS if at_ms < 0 else 0), {})[path] = value
        single = [(one.ts, {path: one.values[path] for path in one.values if path != POWER}) for one in found[0]]
        assert [(ts, values) for ts, values in single if values] == sorted(expected.items(), key=lambda one: one[0])

    def test_a_truncated_document_is_unreadable_as_a_whole(self) -> None:
        for format_, payload in _in_every_format([(LEVEL, _NOW, -5, 80), ((3, 0, 10), _NOW, -6, 7)]):
            for end in range(1, len(payload)):
                with pytest.raises(UnreadablePayload):
                    decode_content(format_, payload[:end], (), NOW_MS)

    def test_a_repeated_record_counts_once_and_of_two_of_one_time_the_later_one(self) -> None:
        for format_, payload in _in_every_format([(LEVEL, 0, -5, 80), (LEVEL, 0, -5, 80), (LEVEL, 0, -5, 81)]):
            assert decode_content(format_, payload, (), NOW_MS) == [_at(NOW_MS - 5_000, {LEVEL: 81})]


def _in_every_format(records: Sequence[tuple[ResourcePath, float, float, int]]) -> Iterator[tuple[int, bytes]]:
    """Records of path, base time, time and value. LWM2M JSON has one base time for all."""
    named = [("/".join(map(str, path)), base, offset, value) for path, base, offset, value in records]
    packed = [{"bn": "/", "bt": base, "n": name, "t": offset, "v": value} for name, base, offset, value in named]
    yield SENML_JSON, json.dumps(packed).encode()
    yield SENML_CBOR, senml_cbor(packed)
    base = named[0][1]
    entries = [{"n": name, "t": own + offset - base, "v": value} for name, own, offset, value in named]
    yield LWM2M_JSON, json.dumps({"bn": "/", "bt": base, "e": entries}).encode()


class TestAnObject:
    @pytest.mark.parametrize(
        ("format_", "payload"),
        [
            (TLV, tlv((0, 1, tlv((3, 5700, struct.pack(">f", 1.5)))), (0, 2, tlv((3, 5700, struct.pack(">f", 2.5)))))),
            (SENML_JSON, b'[{"bn":"/3303/","n":"1/5700","v":1.5},{"n":"2/5700","v":2.5}]'),
            (LWM2M_JSON, b'{"bn":"/3303/","e":[{"n":"1/5700","v":1.5},{"n":"2/5700","v":2.5}]}'),
        ],
    )
    def test_with_several_instances(self, format_: int, payload: bytes) -> None:
        """int-222."""
        assert values_of(format_, payload, (3303,)) == {(3303, 1, 5700): 1.5, (3303, 2, 5700): 2.5}


class TestAResource:
    @each_row(
        ("path", "format_", "payload", "value"),
        [
            (LEVEL, TEXT, b"80", 80),
            (LEVEL, None, b" 80\n", 80),
            (LEVEL, 1541, b"80", 80),
            (TIME, TEXT, b"1367491215", 1_367_491_215_000),
            ((3, 0, 14), TEXT, "+02:00 ü".encode(), "+02:00 ü"),
            ((5, 0, 4), TEXT, b"0", False),
            ((6, 0, 0), TEXT, b"-43.5723", -43.5723),
            ((6, 0, 4), TEXT, b"AQI=", b"\1\2"),
            ((6, 0, 4), OPAQUE, b"\1\2", b"\1\2"),
            (LEVEL, OPAQUE, b"80", 80),
            (LEVEL, TLV, tlv((3, 9, b"\x50")), 80),
            (LEVEL, TLV, tlv((3, 9, b"\x00\x00\x00\x50")), 80),
            (LEVEL, SENML_JSON, b'[{"bn":"/3/0/9","v":80}]', 80),
            (LEVEL, SENML_JSON, b'[{"v":80.0}]', 80),
            (LEVEL, SENML_CBOR, cbor2.dumps([{0: "/3/0/9", 2: 80}]), 80),
            (LEVEL, LWM2M_JSON, b'{"bn":"/3/0/9","e":[{"v":80}]}', 80),
            (LEVEL, LWM2M_JSON, b'{"e":[{"n":"","v":80}]}', 80),
            (LEVEL, 60, cbor2.dumps(80), 80),
            (POWER, TLV, tlv((2, 7, tlv((1, 0, b"\x0e\xd8"), (1, 1, b"\x13\x88")))), [3800, 5000]),
            (POWER, TLV, tlv((1, 0, b"\x0e\xd8"), (1, 1, b"\x13\x88")), [3800, 5000]),
            (POWER, TEXT, b"3800", [3800]),
            ((1, 0, 6), 60, cbor2.dumps(False), False),
            (POWER, SENML_JSON, b'[{"bn":"/3/0/7/","n":"0","v":3800}]', [3800]),
        ],
    )
    def test_in_every_format(self, path: ResourcePath, format_: int | None, payload: bytes, value: object) -> None:
        """int-201, int-211, int-231, int-232."""
        assert values_of(format_, payload, path) == {path: value}

    def test_an_instance_of_a_resource(self) -> None:
        """int-225: the value of a resource instance is a list with it alone."""
        assert values_of(TEXT, b"0", (3, 0, 11, 0)) == {(3, 0, 11): [0]}
        assert values_of(SENML_JSON, b'[{"bn":"/3/0/11/0","v":0}]', (3, 0, 11, 0)) == {(3, 0, 11): [0]}
        assert values_of(TLV, tlv((1, 0, b"\0")), (3, 0, 11, 0)) == {(3, 0, 11): [0]}


class TestMalformed:
    @each_row(
        ("path", "format_", "payload", "reason"),
        [
            (DEVICE, TEXT, b"80", "is text, which cannot hold the values of /3/0"),
            (DEVICE, OPAQUE, b"80", "is a byte string, which cannot hold"),
            (DEVICE, 40, b"</3/0>", "has content-format 40, which is not one for values"),
            (DEVICE, 9999, b"", "has content-format 9999"),
            (LEVEL, TEXT, b"full", "has 'full' at /3/0/9, which should be a whole number"),
            (LEVEL, TEXT, b"9" * 5000, "which should be a whole number"),
            (LEVEL, TEXT, b"\xff", "is text that is not UTF-8"),
            ((6, 0, 0), TEXT, b"nan", "that is not finite"),
            (LEVEL, TLV, tlv((3, 9, b"\0\0\x50")), "has a number of 3 bytes at /3/0/9"),
            ((6, 0, 0), TLV, tlv((3, 0, b"123")), "has a number of 3 bytes at /6/0/0"),
            (DEVICE, TLV, EXAMPLE_TLV[:40], "has a TLV entry of 22 bytes, and"),
            (DEVICE, TLV, b"\xe8\x00", "ends within the head of a TLV entry"),
            (DEVICE, TLV, tlv((3, 0, b"\xff")), "has text at /3/0/0 that is not UTF-8"),
            (DEVICE, TLV, tlv((0, 7, b"")), "has /3/7, and /3/0 was asked for"),
            (DEVICE, TLV, tlv((2, 7, tlv((3, 0, b"\0")))), "has an entry at /3/0/7 that is not a resource instance"),
            (DEVICE, TLV, tlv((1, 7, b"\0")), "has a TLV entry of a wrong type at /3/0/7"),
            (DEVICE, SENML_JSON, b"{}", "is not SenML JSON: it is no array of records"),
            (DEVICE, SENML_JSON, b"[1]", "is not SenML JSON: it is no array of records"),
            (DEVICE, SENML_JSON, b'[{"n":"9"}]', "is not SenML JSON: a record has no value"),
            (DEVICE, SENML_JSON, b'[{"n":"9","v":true}]', "has v of a wrong type at /3/0/9"),
            (DEVICE, SENML_JSON, b'[{"n":"/4/0/1","v":1}]', "has /4/0/1, and /3/0 was asked for"),
            (DEVICE, SENML_JSON, b'[{"n":"/3/0","v":1}]', "has a value at /3/0, which is not a resource"),
            (DEVICE, SENML_JSON, b'[{"n":"nine","v":1}]', "names 'nine', which is not a path"),
            (DEVICE, SENML_JSON, b'[{"n":"99999","v":1}]', "names '99999', which is not a path"),
            (DEVICE, SENML_JSON, b'[{"n":9,"v":1}]', "has a name that is not a text"),
            (DEVICE, SENML_JSON, b'[{"n":"9","v":1,"bv":5}]', "has a base value"),
            (DEVICE, SENML_JSON, b'[{"n":"9","v":1e400}]', "has a number at 0.v that is out of range"),
            (
                DEVICE,
                LWM2M_JSON,
                b'{"e":[{"n":"9","v":80},{"n":"8","v":-1e999}]}',
                "a number at e.1.v that is out of range",
            ),
            (DEVICE, SENML_JSON, b"[" * 10_000, "is not JSON"),
            ((6, 0), SENML_JSON, b'[{"n":"4","vd":"*"}]', "has no BASE64 at /6/0/4"),
            (DEVICE, LWM2M_JSON, b'{"e":[3]}', "an entry of e is no object"),
            (DEVICE, LWM2M_JSON, b"[]", "it is no object with the array e"),
            (DEVICE, SENML_CBOR, b"\x9f", "its bytes are no CBOR"),
            (DEVICE, SENML_CBOR, b"\x81" * 1000, "its bytes are no CBOR"),
            (DEVICE, SENML_CBOR, cbor2.dumps([{-2: "/3/0/", 2: 1}]) + b"\0", "or more than one value"),
            (DEVICE, TLV, bytes(ANSWER_BYTES + 1), "has more than 65536 bytes"),
            (DEVICE, TLV, bytes(2 * MAX_VALUES + 2), "has more than 2048 values"),
            (
                DEVICE,
                SENML_JSON,
                json.dumps([{"n": f"7/{n}", "v": 1} for n in range(MAX_VALUES + 1)]).encode(),
                "values",
            ),
        ],
    )
    def test_is_unreadable_with_a_reason(
        self, path: ResourcePath, format_: int | None, payload: bytes, reason: str
    ) -> None:
        with pytest.raises(UnreadablePayload) as raised:
            values_of(format_, payload, path)
        assert reason in str(raised.value)

    def test_senml_cbor_of_a_client_that_counts_wrong(self) -> None:
        """A known client announces fewer records than follow when a resource has several instances."""
        right = senml_cbor(senml())
        assert right[0] == 0x90
        with pytest.raises(UnreadablePayload, match="is not SenML CBOR"):
            values_of(SENML_CBOR, b"\x8c" + right[1:], DEVICE)

    @given(
        st.sampled_from([TEXT, OPAQUE, TLV, LWM2M_JSON, SENML_JSON, SENML_CBOR, 50, 60, None]),
        st.binary(max_size=200),
        st.sampled_from([DEVICE, LEVEL, POWER, (6, 0), (3303, 0)]),
    )
    def test_no_payload_raises_anything_else(self, format_: int | None, payload: bytes, path: ResourcePath) -> None:
        try:
            found = values_of(format_, payload, path)
        except UnreadablePayload:
            return
        assert all(one[: len(path)] == path for one in found)

    _json: Any = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["bn", "bt", "n", "v", "vs", "vb", "t", "e", 0, 2, 6, -2, -3, 3, 8]), inner, max_size=4
            )
        ),
        max_leaves=12,
    )

    @given(_json)
    def test_no_document_raises_anything_else(self, document: object) -> None:
        for format_, payload in (
            (SENML_CBOR, cbor2.dumps(document)),
            (50, json.dumps(document, default=str).encode()),
        ):
            try:
                values_of(format_, payload, DEVICE)
            except UnreadablePayload:
                continue


class TestLinks:
    def test_discover_names_attributes_that_are_left_out(self) -> None:
        """int-260."""
        payload = b'</3/0>;pmin=10;pmax=60,</3/0/9>;pmin=5;gt="1,5",</3/0/7>;dim=2,</3/0/0>'
        assert parse_discovered(payload, ()) == [(3, 0), (3, 0, 9), (3, 0, 7), (3, 0, 0)]
        assert parse_discovered(b"</x/3/0/1>", (b"x",)) == [(3, 0, 1)]

    @pytest.mark.parametrize("payload", [b"<", b"</3", b"</3>x", b"\xff", b"</3/0>,</" + b"3" * 300 + b">"])
    def test_what_is_no_list_of_links(self, payload: bytes) -> None:
        with pytest.raises(UnreadablePayload):
            parse_offer(payload)

    @given(st.text(alphabet='<>/,;="3.0 ab', max_size=60))
    def test_no_text_raises_anything_else(self, text: str) -> None:
        try:
            parse_links(text)
        except UnreadablePayload:
            return


class TestWriting:
    @each_row(
        ("path", "value", "text"),
        [
            ((3, 0, 14), "+01:00", b"+01:00"),
            (LEVEL, 80, b"80"),
            (TIME, 1_367_491_215_999, b"1367491215"),
            ((5, 0, 4), True, b"1"),
            ((5, 0, 4), False, b"0"),
            ((6, 0, 0), 50.5, b"50.5"),
            ((6, 0, 4), b"\x00\xff", b"AP8="),
        ],
    )
    def test_text(self, path: ResourcePath, value: Any, text: bytes) -> None:
        """int-205, int-227."""
        assert encode_plain_text(path, value) == text

    def test_a_list_is_not_written(self) -> None:
        with pytest.raises(ValueError, match="cannot be written"):
            encode_plain_text(POWER, [1])
