"""Topic filters: which are well-formed, and what they match (MQTT 5.0, 4.7 and 4.8)."""

from hypothesis import given
from hypothesis import strategies as st

from broker.topics.space import is_subscribable
from broker.topics.tree import TopicTree, is_filter, is_topic, matches, pattern_of
from config.limits import MQTT_TOPIC_BYTES_MAX, MQTT_TOPIC_LEVELS_MAX
from storage.keys import DeviceKey
from storage.mqtt_sessions import TopicSubscriptionRecord
from tests.rows import each_row

SUBSCRIPTION = TopicSubscriptionRecord(1)
DEVICE = DeviceKey(1)

# The examples of the standard, and what lies next to them.
MATCHES = [
    (b"sport/tennis/player1/#", b"sport/tennis/player1", True),
    (b"sport/tennis/player1/#", b"sport/tennis/player1/ranking", True),
    (b"sport/tennis/player1/#", b"sport/tennis/player1/score/wimbledon", True),
    (b"sport/#", b"sport", True),
    (b"sport/#", b"sports", False),
    (b"#", b"a/b", True),
    (b"#", b"/", True),
    (b"sport/tennis/+", b"sport/tennis/player1", True),
    (b"sport/tennis/+", b"sport/tennis/player1/ranking", False),
    (b"sport/+", b"sport", False),
    (b"sport/+", b"sport/", True),
    (b"+", b"sport", True),
    (b"+/+", b"/finance", True),
    (b"/+", b"/finance", True),
    (b"+", b"/finance", False),
    (b"#", b"$SYS/x", False),
    (b"+/monitor/Clients", b"$SYS/monitor/Clients", False),
    (b"$SYS/#", b"$SYS/monitor", True),
    (b"$SYS/monitor/+", b"$SYS/monitor/Clients", True),
    (b"ACCOUNTS", b"Accounts", False),
    (b"a b", b"a b", True),
]


@each_row(("filter_", "topic", "is_match"), MATCHES)
def test_what_a_filter_matches(filter_: bytes, topic: bytes, is_match: bool) -> None:
    assert matches(filter_, topic) is is_match
    assert (pattern_of(filter_).fullmatch(topic) is not None) is is_match
    tree = TopicTree()
    tree.add(filter_, DEVICE, SUBSCRIPTION)
    assert tree.match(topic)[0] == ([{DEVICE: SUBSCRIPTION}] if is_match else [])
    tree.remove(filter_, DEVICE)
    assert tree.match(topic) == ([], [])


levels = st.sampled_from([b"", b"a", b"b", b"+", b"$a"])
filters = st.tuples(st.lists(levels, min_size=1, max_size=4), st.booleans()).map(
    lambda parts: b"/".join([*parts[0], *([b"#"] if parts[1] else [])])
)
topics = st.lists(st.sampled_from([b"", b"a", b"b", b"$a"]), min_size=1, max_size=4).map(b"/".join)


@given(st.lists(filters, max_size=6, unique=True), topics)
def test_the_tree_finds_what_each_filter_matches(filters: list[bytes], topic: bytes) -> None:
    tree = TopicTree()
    for number, filter_ in enumerate(filters):
        tree.add(filter_, DeviceKey(number), SUBSCRIPTION)
    found = sorted(device for one in tree.match(topic)[0] for device in one)
    assert [bool(pattern_of(filter_).fullmatch(topic)) for filter_ in filters] == [
        matches(filter_, topic) for filter_ in filters
    ]
    assert found == [number for number, filter_ in enumerate(filters) if matches(filter_, topic)]
    for number, filter_ in enumerate(filters):
        tree.remove(filter_, DeviceKey(number))
    assert tree._root.is_empty


@each_row(
    ("filter_", "is_valid"),
    [
        (b"#", True),
        (b"+", True),
        (b"a/+/b/#", True),
        (b"/", True),
        (b"", False),
        (b"a/#/b", False),  # [MQTT-4.7.1-1]
        (b"a#", False),
        (b"a+/b", False),  # [MQTT-4.7.1-2]
        (b"a/b+", False),
        (b"$share/g/a/#", True),
        (b"$share/g", False),  # [MQTT-4.8.2-1]
        (b"$share//a", False),
        (b"$share/g/", False),
        (b"$share/g+/a", False),  # [MQTT-4.8.2-2]
        (b"$share/g/a#", False),
        (b"/".join([b"a"] * MQTT_TOPIC_LEVELS_MAX), True),
        (b"/".join([b"a"] * (MQTT_TOPIC_LEVELS_MAX + 1)), False),
        (b"a" * MQTT_TOPIC_BYTES_MAX, True),
        (b"a" * (MQTT_TOPIC_BYTES_MAX + 1), False),
        (b"$share/g/" + b"a" * (MQTT_TOPIC_BYTES_MAX + 1), False),
    ],
)
def test_which_filters_are_well_formed(filter_: bytes, is_valid: bool) -> None:
    assert is_subscribable(filter_) is is_valid
    if not filter_.startswith(b"$share/"):
        assert is_filter(filter_) is is_valid


def test_a_topic_has_no_wildcards_and_few_levels() -> None:
    most = b"/".join([b"a"] * MQTT_TOPIC_LEVELS_MAX)
    assert [is_topic(one) for one in (b"a", b"/", most, b"", b"a/+", b"#", most + b"/")] == [True] * 3 + [False] * 4
    longest = b"a" * MQTT_TOPIC_BYTES_MAX
    assert [is_topic(one) for one in (longest, longest + b"a")] == [True, False]


def test_no_message_goes_where_only_a_server_speaks() -> None:
    assert [is_topic(one) for one in (b"$SYS/a", b"$share/g/a", b"$SYS", b"$a/b", b"a/$SYS/b")] == [False] * 2 + [
        True
    ] * 3


def test_members_of_a_group_take_turns() -> None:
    tree = TopicTree()
    for number in (1, 2, 3):
        tree.add(b"a", DeviceKey(number), SUBSCRIPTION, b"g")
    ((group,), *_) = [tree.match(b"a")[1]]
    turns = []
    for _ in range(6):
        turns.append(next(iter(group.members)))
        group.move_to_end(turns[-1])
    assert turns == [1, 2, 3, 1, 2, 3]
    for number in (1, 2, 3):
        tree.remove(b"a", DeviceKey(number), b"g")
    assert tree.match(b"a") == ([], [])
