"""The device channel, rule by rule, and compared with a model."""

import json
from collections.abc import Sequence

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.errors import (
    DeviceNotFound,
    DomainError,
    InvalidTimestamp,
    PayloadTooLarge,
    PermissionDenied,
    StorageUnavailable,
    TimestampInFuture,
    Unauthorized,
)
from broker.limits.meters import Meter
from broker.limits.refusals import RateLimitExceeded, Standing
from config.limits import UNREGISTERED_FRAMES_MAX
from config.rates import Rate
from protocols.websocket.device_channel import (
    ActionOffered,
    ChannelAnswer,
    ChannelClose,
    ChannelEvent,
    ChannelOffer,
    ChannelStatistics,
    DeviceChannel,
    DeviceChannelState,
    DeviceUnregistered,
    MessageOffered,
    RegistrationRequested,
)
from protocols.websocket.frames import FrameForm
from tests.rows import each_row

TOKEN = "2" * 32
_STANDING = Standing(limit=Rate(1, 1), remaining=Rate(0, 0), reset_seconds=Rate(1, 1))
ORGANIZATION = "0f" * 16


def say(channel: DeviceChannel, **members: object) -> tuple[ChannelEvent, ...]:
    return channel.receive(json.dumps(members))


def register(channel: DeviceChannel, *sdids: str) -> None:
    for sdid in sdids:
        say(channel, type="register", sdid=sdid, Authorization=f"bearer {TOKEN}")
        channel.registration_accepted(sdid)


def registered_channel(*sdids: str, ack: bool = True) -> DeviceChannel:
    channel = DeviceChannel(ack=ack)
    register(channel, *sdids)
    return channel


def offer(channel: DeviceChannel, **members: object) -> ChannelOffer:
    (event,) = say(channel, data={"a": 1}, **members)
    assert isinstance(event, MessageOffered | ActionOffered)
    return event


def error(code: int, message: str, cid: str | None = None) -> dict[str, object]:
    body: dict[str, object] = {"code": code, "message": message}
    return {"error": body if cid is None else body | {"cid": cid}}


def ok(message: object = "OK", cid: str | None = None) -> dict[str, object]:
    body = {"message": message, "code": "200"}
    return {"data": body if cid is None else body | {"cid": cid}}


def frames(events: Sequence[ChannelEvent]) -> list[object]:
    """The frames that the client reads, in order."""
    return [
        json.loads(frame) if isinstance(frame, str) else msgpack.unpackb(frame)
        for event in events
        if isinstance(event, ChannelAnswer)
        for frame in event.frames
    ]


def others(events: Sequence[ChannelEvent]) -> list[ChannelEvent]:
    return [event for event in events if not isinstance(event, ChannelAnswer)]


def settle_all(
    channel: DeviceChannel, events: Sequence[ChannelEvent], verdict: str | DomainError = "m"
) -> list[object]:
    offers = [event for event in events if isinstance(event, MessageOffered | ActionOffered)]
    return frames(events) + frames(channel.settle((offered, verdict) for offered in offers))


# --- The error table (reference 19.5) ------------------------------------------------------------------------------

NO_ROOM = PayloadTooLarge(organization_id=ORGANIZATION, device_id="a")


@each_row(
    ("members", "verdict", "code", "text"),
    [
        ({"type": "register", "Authorization": TOKEN}, None, 400, "Missing sdid value"),
        ({"type": "register", "sdid": "", "Authorization": TOKEN}, None, 400, "Missing sdid value"),
        ({"type": "register", "sdid": 7, "Authorization": TOKEN}, None, 400, "Missing sdid value"),
        ({"type": "unregister"}, None, 400, "Missing sdid value"),
        ({"type": "message", "data": {}}, None, 400, "Missing sdid value"),
        ({"type": "message", "data": {}, "sdid": ""}, None, 400, "Missing sdid value"),
        ({"type": "message", "data": {}, "sdid": 7}, None, 400, "Missing sdid value"),
        ({"type": "action", "data": {}, "ddid": "t"}, None, 400, "Missing sdid value"),
        ({"type": "action", "data": {}, "sdid": "a"}, None, 400, "Missing ddid value"),
        ({"type": "action", "data": {}, "sdid": "a", "ddid": ""}, None, 400, "Missing ddid value"),
        ({"sdid": "a", "data": {}, "ts": -1}, InvalidTimestamp(), 400, "Invalid ts value"),
        ({"sdid": "a", "data": {}, "ts": 9e15}, TimestampInFuture(), 400, "Invalid ts value (in future)"),
        ({"type": "register", "sdid": "c"}, None, 401, "Please provide a valid authorization header"),
        ({"type": "register", "sdid": "c", "Authorization": "Basic x"}, None, 401, Unauthorized.template),
        ({"type": "message", "data": {}, "sdid": "c"}, None, 401, "Device not registered"),
        ({"type": "action", "data": {}, "sdid": "c", "ddid": "t"}, None, 401, "Device not registered"),
        (
            {"type": "action", "data": {}, "sdid": "a", "ddid": "t"},
            PermissionDenied("WRITE on device t"),
            403,
            "You do not have the right permission: devices",
        ),
        ({"type": "unregister", "sdid": "c"}, None, 404, "Device(s) not found"),
        ({"sdid": "a", "data": {}}, NO_ROOM, 413, str(NO_ROOM)),
        ({"sdid": "a", "data": {}}, StorageUnavailable("disk full"), 503, "Service Unavailable"),
        ({"type": "register", "sdid": "a", "Authorization": TOKEN}, None, 409, "Device already registered"),
        ({"sdid": "a"}, None, 4001, "Validation Error"),
        ({"type": "action", "sdid": "a", "ddid": "t"}, None, 4001, "Validation Error"),
        ({"type": "subscribe"}, None, 400, "Bad Request"),
    ],
)
@each_row("cid", [None, "c1"])
def test_error_frame(
    members: dict[str, object], verdict: DomainError | None, code: int, text: str, cid: str | None
) -> None:
    channel = registered_channel("a", "b")
    events = say(channel, **members, cid=cid)
    assert settle_all(channel, events, verdict or "m") == [error(code, text, cid)]
    # Errors never close the connection, and change nothing.
    assert channel.registered == ("a", "b")
    assert channel.state is DeviceChannelState.REGISTERED


@pytest.mark.parametrize("payload", ["{", "[]", "7", b"{\xff}", b"\xc1"])
def test_bad_request(payload: str | bytes) -> None:
    assert frames(registered_channel("a").receive(payload)) == [error(400, "Bad Request")]


@each_row("cid", [{}, [], True, "x" * 257])
@each_row("kind", ["register", "unregister", "list", "message", "action"])
def test_wrong_cid(cid: object, kind: str) -> None:
    channel = registered_channel("a")
    events = say(channel, type=kind, sdid="a", ddid="t", data={}, Authorization=TOKEN, cid=cid)
    assert frames(events) == [error(403, "Wrong cid")]
    assert len(events) == 1
    assert channel.registered == ("a",)


@each_row(
    "refusal", [Unauthorized(), PermissionDenied("WRITE on device a"), DeviceNotFound("a")], ids=["401", "403", "404"]
)
@each_row("ack", [False, True])
def test_refused_registration(refusal: DomainError, ack: bool) -> None:
    channel = DeviceChannel(ack=ack)
    say(channel, type="register", sdid="a", Authorization=TOKEN, cid=7)
    texts = {
        401: "Please provide a valid authorization header",
        403: "You do not have the right permission: devices",
        404: "Device(s) not found",
    }
    answer = frames(channel.registration_refused("a", refusal))
    assert answer == [error(refusal.status, texts[refusal.status], "7")]
    assert channel.state is DeviceChannelState.AWAITING_REGISTRATION


# --- Registration -------------------------------------------------------------------------------------------------


@each_row(
    ("handshake_token", "member", "used"),
    [
        (None, {"Authorization": "bearer t1"}, "t1"),
        (None, {"authorization": "BEARER+t1"}, "t1"),
        ("t0", {"Authorization": "t1"}, "t1"),
        ("t0", {}, "t0"),
        ("t0", {"Authorization": None}, "t0"),
        ("t0", {"Authorization": ""}, None),
        ("t0", {"Authorization": 5}, None),
        (None, {}, None),
    ],
)
def test_which_token_registers(handshake_token: str | None, member: dict[str, object], used: str | None) -> None:
    channel = DeviceChannel(handshake_token=handshake_token)
    events = say(channel, type="register", sdid="a", cid="c", **member)
    if used is None:
        assert frames(events) == [error(401, "Please provide a valid authorization header", "c")]
    else:
        assert events == (RegistrationRequested("a", used, "c"),)


@pytest.mark.parametrize(("ack", "answers"), [(True, [ok(cid="c")]), (False, [])])
def test_registration_is_acknowledged_on_request(ack: bool, answers: list[object]) -> None:
    channel = DeviceChannel(ack=ack)
    say(channel, type="register", sdid="a", Authorization=TOKEN, cid="c")
    assert (channel.state, channel.registered) == (DeviceChannelState.AWAITING_REGISTRATION, ())
    assert frames(channel.registration_accepted("a")) == answers
    assert (channel.state, channel.registered) == (DeviceChannelState.REGISTERED, ("a",))


def test_registrations_are_decided_in_any_order() -> None:
    channel = DeviceChannel(ack=True)
    for sdid in "abc":
        say(channel, type="register", sdid=sdid, Authorization=TOKEN, cid=sdid)
    assert channel.statistics() == ChannelStatistics(registered=0, registrations_under_way=3, answers_waiting=0)
    assert frames(channel.registration_accepted("c")) == [ok(cid="c")]
    assert frames(channel.registration_refused("a", DeviceNotFound("a"))) == [error(404, "Device(s) not found", "a")]
    assert frames(channel.registration_accepted("b")) == [ok(cid="b")]
    assert channel.registered == ("c", "b")


def test_a_registration_under_way_counts_as_registered_for_a_second_one() -> None:
    channel = DeviceChannel()
    say(channel, type="register", sdid="a", Authorization=TOKEN)
    events = say(channel, type="register", sdid="a", Authorization=TOKEN, cid="2")
    assert frames(events) == [error(409, "Device already registered", "2")]
    channel.registration_accepted("a")
    assert channel.registered == ("a",)


def test_a_device_may_register_again_after_it_was_refused_or_unregistered() -> None:
    channel = registered_channel("a", "b")
    say(channel, type="unregister", sdid="a")
    register(channel, "a")
    assert channel.registered == ("b", "a")


# --- Before registration ------------------------------------------------------------------------------------------


@each_row("ack", [False, True])
@each_row("under_way", [False, True])
@each_row(
    "members",
    [
        {"sdid": "a", "data": {}},
        {"type": "message", "sdid": "a", "data": {}, "cid": []},
        {"type": "action", "sdid": "a", "ddid": "t", "data": {"actions": []}},
        {"type": "action"},
        {"data": {}, "ts": "x"},
    ],
)
def test_messages_before_registration_are_discarded(
    members: dict[str, object],
    ack: bool,
    under_way: bool,
) -> None:
    channel = DeviceChannel(ack=ack)
    if under_way:
        say(channel, type="register", sdid="a", Authorization=TOKEN)
    assert say(channel, **members) == ()


@pytest.mark.parametrize("ack", [False, True])
def test_list_is_answered_before_registration(ack: bool) -> None:
    assert frames(say(DeviceChannel(ack=ack), type="list", cid=1)) == [ok([], "1")]


def test_unregister_before_registration() -> None:
    events = say(DeviceChannel(), type="unregister", sdid="a")
    assert frames(events) == [error(404, "Device(s) not found")]


@pytest.mark.parametrize(("ack", "answers"), [(True, [error(400, "Bad Request")]), (False, [])])
def test_an_unreadable_frame_before_registration_is_answered_on_request(
    ack: bool,
    answers: list[object],
) -> None:
    assert frames(DeviceChannel(ack=ack).receive('{"type":"register",')) == answers


# --- Messages and their acknowledgements --------------------------------------------------------------------------


def test_message_with_all_members() -> None:
    channel = registered_channel("a", "b")
    (event,) = channel.receive('{"sdid":"b","type":"message","data":{ "x":1.50 },"ts":5,"cid":9}')
    assert event == MessageOffered("b", b'{ "x":1.50 }', 5, "9")
    assert frames(channel.settle([(event, "m1")])) == [{"data": {"mid": "m1", "cid": "9"}}]


_MEMBERS = {
    "type": st.sampled_from(["message", "MESSAGE", "action", "list", "ping", None, 1]),
    "sdid": st.sampled_from(["a", "b", "c", "", None, 1]),
    "ddid": st.sampled_from(["a", "", None]),
    "data": st.sampled_from([{"a": 1}, {}, {"actions": [1]}, '{"a": 2}', "no", "", 7, [1], None, True, "\xe9"]),
    "ts": st.sampled_from([1, 1.5, -1, "1", True, None]),
    "cid": st.sampled_from(["1", "x-y", "\xe9", '"', "c" * 256, "c" * 257, "", 7, 1.5, True, None]),
}


@given(st.fixed_dictionaries({}, optional=_MEMBERS), st.sampled_from([None, 1]), st.booleans(), st.booleans())
def test_a_text_frame_means_what_the_same_bytes_mean(
    members: dict[str, object], indent: int | None, ack: bool, is_metered: bool
) -> None:
    """For `receive_usual`, which takes usual messages, test_batches.py says the same."""
    text = json.dumps(members, indent=indent)
    given: list[list[object]] = []
    for payload in (text, text.encode()):
        channel, counted = registered_channel("a", "b", ack=ack), Counted()
        if is_metered:
            channel = DeviceChannel(ack=ack)
            for sdid in ("a", "b"):
                say(channel, type="register", sdid=sdid, Authorization=f"bearer {TOKEN}")
                channel.registration_accepted(sdid, counted)
        said = [channel.receive(payload) for _ in range(3)]
        given.append([said, counted.calls, channel.answers_waiting, channel.form])
    assert repr(given[0]) == repr(given[1])


class Counted(Meter):
    """Refuses the third call."""

    def __init__(self) -> None:
        self.calls = 0

    __slots__ = ("calls",)

    def count(self) -> None:
        if self.calls == 2:
            raise RateLimitExceeded(1, "MINUTE", _STANDING)
        self.calls += 1


def test_action_with_all_members() -> None:
    channel = registered_channel("a", "b")
    (event,) = channel.receive('{"sdid":"b","ddid":"t","data":{"actions":[{"name":"setOn"}]},"ts":5,"cid":"9"}')
    assert event == ActionOffered("b", "t", b'{"actions":[{"name":"setOn"}]}', 5, "9")
    assert frames(channel.settle([(event, "m1")])) == [{"data": {"mid": "m1", "cid": "9"}}]


def test_sdid_may_be_missing_with_exactly_one_device() -> None:
    channel = registered_channel("a")
    assert offer(channel).sdid == "a"
    assert offer(channel, type="action", ddid="t").sdid == "a"


def test_acknowledgements_have_exactly_the_documented_bytes() -> None:
    channel = registered_channel("a")
    assert channel.settle([(offer(channel), "m1")]) == (ChannelAnswer(('{"data":{"mid":"m1"}}',)),)


def test_without_ack_messages_are_never_answered() -> None:
    channel = registered_channel("a", "b", ack=False)
    for verdict in ("m", InvalidTimestamp()):
        assert channel.settle([(offer(channel, sdid="a"), verdict)]) == ()
    refused: list[dict[str, object]] = [{"data": {}}, {"sdid": "c", "data": {}}, {"cid": []}, {"type": "action"}]
    for members in refused:
        assert say(channel, **members) == ()
    assert say(channel, sdid="a") == ()
    assert channel.receive("{") == ()
    assert channel.statistics().answers_waiting == 0


def test_without_ack_errors_of_the_other_frames_and_the_list_are_sent() -> None:
    channel = registered_channel("a", ack=False)
    assert frames(say(channel, type="register", sdid="a", Authorization=TOKEN)) == [
        error(409, "Device already registered")
    ]
    assert frames(say(channel, type="unregister", sdid="b")) == [error(404, "Device(s) not found")]
    assert frames(say(channel, type="list", cid=[])) == [error(403, "Wrong cid")]
    assert frames(say(channel, type="list", cid="x")) == [ok(["a"], "x")]


def test_answers_go_out_in_the_order_the_messages_came() -> None:
    channel = registered_channel("a")
    first, second = offer(channel, cid=1), offer(channel, cid=2)
    assert say(channel, sdid="b", data={}, cid=3) == ()
    fourth = offer(channel, cid=4)
    assert say(channel, type="list", cid=5) == ()
    assert channel.settle([(second, InvalidTimestamp())]) == ()
    assert channel.statistics().answers_waiting == 5
    assert frames(channel.settle([(first, "m1")])) == [
        {"data": {"mid": "m1", "cid": "1"}},
        error(400, "Invalid ts value", "2"),
        error(401, "Device not registered", "3"),
    ]
    assert frames(channel.settle([(fourth, "m4")])) == [{"data": {"mid": "m4", "cid": "4"}}, ok(["a"], "5")]
    assert channel.statistics().answers_waiting == 0


def test_offers_of_one_read_are_settled_together() -> None:
    channel = registered_channel("a")
    offers = [offer(channel, cid=number) for number in range(20)]
    (answer,) = channel.settle((offered, f"m{number}") for number, offered in enumerate(offers))
    assert isinstance(answer, ChannelAnswer)
    assert [json.loads(frame)["data"]["cid"] for frame in answer.frames] == [str(number) for number in range(20)]


def test_answers_take_the_form_of_the_frame_they_answer() -> None:
    channel = registered_channel("a")
    (packed,) = channel.receive(msgpack.packb({"data": {"x": 1}}))
    assert packed == MessageOffered("a", b'{"x":1}', form=FrameForm.MESSAGE_PACK)
    assert channel.form is FrameForm.MESSAGE_PACK
    written = offer(channel)
    (answer,) = channel.settle([(packed, "m1"), (written, "m2")])
    assert answer == ChannelAnswer((msgpack.packb({"data": {"mid": "m1"}}), '{"data":{"mid":"m2"}}'))
    (listed,) = channel.receive(msgpack.packb({"type": "list"}))
    assert listed == ChannelAnswer((msgpack.packb(ok(["a"])),))
    assert channel.taken_over("a") == (DeviceUnregistered("a"), ChannelClose(1008, "replaced by a newer connection"))


# --- Ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ack", [False, True])
def test_unregister_of_one_device_among_others(ack: bool) -> None:
    channel = registered_channel("a", "b", ack=ack)
    events = say(channel, type="unregister", sdid="a", cid="c")
    assert frames(events) == ([ok(cid="c")] if ack else [])
    assert others(events) == [DeviceUnregistered("a")]
    assert channel.registered == ("b",)


@pytest.mark.parametrize("ack", [False, True])
def test_unregister_of_the_last_device_closes(ack: bool) -> None:
    channel = registered_channel("a", ack=ack)
    events = say(channel, type="unregister", sdid="a", cid="c")
    ending = error(400, "No registered device", "c")
    assert frames(events) == ([ok(cid="c"), ending] if ack else [ending])
    assert others(events) == [DeviceUnregistered("a"), ChannelClose(1000, "No registered device")]
    assert isinstance(events[-1], ChannelClose)
    assert channel.state is DeviceChannelState.CLOSED
    assert say(channel, type="list") == ()


def test_the_close_waits_for_the_acknowledgements_of_earlier_messages() -> None:
    channel = registered_channel("a")
    offered = offer(channel, cid=1)
    assert say(channel, type="unregister", sdid="a") == (DeviceUnregistered("a"),)
    events = channel.settle([(offered, "m1")])
    assert frames(events) == [{"data": {"mid": "m1", "cid": "1"}}, ok(), error(400, "No registered device")]
    assert others(events) == [ChannelClose(1000, "No registered device")]


def test_registration_timeout() -> None:
    channel = DeviceChannel()
    events = channel.registration_timed_out()
    assert frames(events) == [error(400, "Registration timeout")]
    assert others(events) == [ChannelClose(1000, "Registration timeout")]
    assert channel.state is DeviceChannelState.CLOSED


def test_a_registered_channel_does_not_time_out() -> None:
    assert registered_channel("a").registration_timed_out() == ()


def test_a_registration_under_way_at_the_timeout_is_awaited() -> None:
    channel = DeviceChannel(ack=True)
    say(channel, type="register", sdid="a", Authorization=TOKEN)
    assert channel.registration_timed_out() == ()
    assert frames(channel.registration_accepted("a")) == [ok()]
    assert channel.state is DeviceChannelState.REGISTERED


def test_refused_after_the_timeout() -> None:
    channel = DeviceChannel()
    say(channel, type="register", sdid="a", Authorization=TOKEN)
    channel.registration_timed_out()
    events = channel.registration_refused("a", Unauthorized())
    assert frames(events) == [error(401, Unauthorized.template), error(400, "Registration timeout")]
    assert others(events) == [ChannelClose(1000, "Registration timeout")]


def test_unregister_waits_for_a_registration_under_way() -> None:
    channel = registered_channel("a")
    say(channel, type="register", sdid="b", Authorization=TOKEN, cid="b")
    events = say(channel, type="unregister", sdid="a", cid="a")
    assert frames(events) == [ok(cid="a")]
    assert others(events) == [DeviceUnregistered("a")]
    events = channel.registration_refused("b", DeviceNotFound("b"))
    assert frames(events) == [error(404, "Device(s) not found", "b"), error(400, "No registered device", "a")]
    assert others(events) == [ChannelClose(1000, "No registered device")]


def test_the_timeout_does_not_affect_a_channel_that_was_registered_before() -> None:
    channel = registered_channel("a")
    say(channel, type="register", sdid="b", Authorization=TOKEN)
    say(channel, type="unregister", sdid="a")
    assert channel.registration_timed_out() == ()
    events = channel.registration_refused("b", DeviceNotFound("b"))
    assert others(events) == [ChannelClose(1000, "No registered device")]


def test_take_over_of_one_device_among_others() -> None:
    channel = registered_channel("a", "b")
    events = channel.taken_over("a")
    assert frames(events) == [error(409, "replaced by a newer connection")]
    assert others(events) == [DeviceUnregistered("a")]
    assert channel.registered == ("b",)


def test_take_over_of_the_only_device_closes() -> None:
    channel = registered_channel("a")
    assert channel.taken_over("a") == (DeviceUnregistered("a"), ChannelClose(1008, "replaced by a newer connection"))
    assert channel.state is DeviceChannelState.CLOSED


def test_take_over_of_a_device_of_another_channel_changes_nothing() -> None:
    channel = registered_channel("a")
    assert channel.taken_over("b") == ()
    assert channel.registered == ("a",)


def test_take_over_with_a_registration_under_way() -> None:
    channel = registered_channel("a")
    say(channel, type="register", sdid="b", Authorization=TOKEN)
    assert frames(channel.taken_over("a")) == [error(409, "replaced by a newer connection")]
    events = channel.registration_refused("b", Unauthorized())
    assert others(events) == [ChannelClose(1008, "replaced by a newer connection")]


def test_access_ended_by_the_broker() -> None:
    channel = registered_channel("a", "b")
    assert frames(channel.access_ended("a", Unauthorized())) == [error(401, Unauthorized.template)]
    assert channel.access_ended("b", Unauthorized())[-1] == ChannelClose(1008, Unauthorized.template)


def test_a_lost_connection_unregisters_its_devices() -> None:
    channel = registered_channel("a", "b")
    offered = offer(channel, sdid="a")
    say(channel, type="register", sdid="c", Authorization=TOKEN)
    assert channel.disconnected() == (DeviceUnregistered("a"), DeviceUnregistered("b"))
    assert channel.statistics() == ChannelStatistics(registered=0, registrations_under_way=0, answers_waiting=0)
    assert channel.state is DeviceChannelState.CLOSED
    assert channel.settle([(offered, "m")]) == ()
    # A verdict that comes too late: the device goes straight back.
    assert channel.registration_accepted("c") == (DeviceUnregistered("c"),)
    assert channel.registration_refused("c", Unauthorized()) == ()
    assert channel.registration_timed_out() == ()
    assert channel.taken_over("a") == ()
    assert channel.disconnected() == ()


# --- Whatever arrives ---------------------------------------------------------------------------------------------


@given(st.lists(st.binary() | st.text() | st.text().map(lambda text: '{"type":' + text)), st.booleans())
def test_any_payload_gives_an_answer_or_silence(payloads: list[str | bytes], ack: bool) -> None:
    channel = registered_channel("a", ack=ack)
    for payload in payloads:
        events = channel.receive(payload)
        assert all(isinstance(event, ChannelAnswer | MessageOffered) for event in events)
        channel.settle([(event, "m") for event in events if isinstance(event, MessageOffered)])
    assert channel.registered == ("a",)


SDIDS = st.sampled_from(["a", "b", "c"])


# --- Strangers --------------------------------------------------------------------------------------------------------


def never(frames: int) -> bool:
    return False


TOO_MANY = (ChannelClose(1008, "no device is registered"),)


@pytest.mark.parametrize("payload", ["", "{}", '{"type":"list"}', '{"data":{"a":1}}', "no JSON"])
def test_a_stranger_is_closed_after_a_handful_of_frames(payload: str) -> None:
    channel = DeviceChannel()
    for _ in range(UNREGISTERED_FRAMES_MAX):
        assert not any(isinstance(event, ChannelClose) for event in channel.receive(payload))
    assert channel.receive(payload) == TOO_MANY
    assert channel.receive(payload) == ()


def test_pings_and_fragments_are_frames_of_a_stranger() -> None:
    channel = DeviceChannel()
    assert channel.receive_overhead(UNREGISTERED_FRAMES_MAX, 0, never) == ()
    assert channel.receive_overhead(1, 1, never) == TOO_MANY


def test_refused_registrations_are_frames_of_a_stranger() -> None:
    channel = DeviceChannel()
    for number in range(UNREGISTERED_FRAMES_MAX):
        say(channel, type="register", sdid=f"d{number}", Authorization=TOKEN)
        channel.registration_refused(f"d{number}", Unauthorized())
    assert say(channel, type="list") == TOO_MANY


@pytest.mark.parametrize("channel", [DeviceChannel(handshake_token=TOKEN), registered_channel("d1")])
def test_who_has_shown_a_token_is_no_stranger(channel: DeviceChannel) -> None:
    for _ in range(UNREGISTERED_FRAMES_MAX + 1):
        channel.receive("")
    assert channel.receive_overhead(UNREGISTERED_FRAMES_MAX, 1, bool) == ()
    assert channel.state is not DeviceChannelState.CLOSED


class Conversation(RuleBasedStateMachine):
    """Compares the channel with a model: registered devices, pending registrations, unanswered messages."""

    def __init__(self) -> None:
        super().__init__()
        self.channel = DeviceChannel(ack=True, handshake_token=TOKEN)
        self.registered: list[str] = []
        self.under_way: set[str] = set()
        self.had_enough = False  # something has happened after which an empty channel closes
        self.closed = False
        self.close_sent = False
        self.offers: list[ChannelOffer] = []
        self.owed: list[str] = []
        self.sent = 0

    def take(self, events: Sequence[ChannelEvent]) -> None:
        for event in events:
            assert not self.close_sent, "said after the close"
            match event:
                case ChannelAnswer(frames=said):
                    for frame in said:
                        self.hear(json.loads(frame))
                case ChannelClose():
                    self.close_sent = True
                case MessageOffered() | ActionOffered():
                    self.offers.append(event)
                case _:
                    pass

    def hear(self, frame: dict[str, dict[str, str]]) -> None:
        body = frame.get("data") or frame["error"]
        if body.get("cid", "").startswith("m"):
            assert body["cid"] == self.owed.pop(0), "answers to messages are out of order"

    def leave(self, sdid: str) -> None:
        self.registered.remove(sdid)
        self.had_enough = True

    def close_if_empty(self) -> None:
        if self.had_enough and not self.registered and not self.under_way:
            self.closed = True

    @rule(sdid=SDIDS)
    def ask_to_register(self, sdid: str) -> None:
        events = say(self.channel, type="register", sdid=sdid, Authorization=TOKEN)
        expected = not self.closed and sdid not in self.registered and sdid not in self.under_way
        assert any(isinstance(event, RegistrationRequested) for event in events) is expected
        if expected:
            self.under_way.add(sdid)
        self.take(events)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        sdid = data.draw(st.sampled_from(sorted(self.under_way)))
        self.under_way.remove(sdid)
        self.registered.append(sdid)
        self.had_enough = False
        self.take(self.channel.registration_accepted(sdid))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        sdid = data.draw(st.sampled_from(sorted(self.under_way)))
        self.under_way.remove(sdid)
        self.close_if_empty()
        self.take(self.channel.registration_refused(sdid, Unauthorized()))

    @rule(sdid=SDIDS)
    def unregister(self, sdid: str) -> None:
        if sdid in self.registered:
            self.leave(sdid)
            self.close_if_empty()
        self.take(say(self.channel, type="unregister", sdid=sdid))

    @rule(sdid=SDIDS)
    def take_over(self, sdid: str) -> None:
        if sdid in self.registered:
            self.leave(sdid)
            self.close_if_empty()
        self.take(self.channel.taken_over(sdid))

    @rule()
    def time_out(self) -> None:
        if not self.registered:
            self.had_enough = True
            self.close_if_empty()
        self.take(self.channel.registration_timed_out())

    @rule(sdid=SDIDS | st.none())
    def send_message(self, sdid: str | None) -> None:
        self.sent += 1
        cid = f"m{self.sent}"
        if self.registered:
            self.owed.append(cid)
        offered = len(self.offers)
        self.take(say(self.channel, sdid=sdid, data={}, cid=cid))
        source = self.registered[0] if sdid is None and len(self.registered) == 1 else sdid
        if source in self.registered:
            assert self.offers[offered].sdid == source
        else:
            assert len(self.offers) == offered

    @precondition(lambda self: self.offers)
    @rule(data=st.data(), refused=st.booleans())
    def settle_some(self, data: st.DataObject, refused: bool) -> None:
        chosen = data.draw(st.lists(st.sampled_from(range(len(self.offers))), unique=True))
        verdict: str | DomainError = InvalidTimestamp() if refused else "mid"
        self.take(self.channel.settle([(self.offers[number], verdict) for number in chosen]))
        self.offers = [offered for number, offered in enumerate(self.offers) if number not in chosen]

    @invariant()
    def the_registered_set_is_the_models(self) -> None:
        assert self.channel.registered == tuple(self.registered)
        assert (self.channel.state is DeviceChannelState.CLOSED) is self.closed
        assert self.channel.statistics().registrations_under_way == len(self.under_way)

    @invariant()
    def nothing_is_held_back_without_need(self) -> None:
        if not self.offers:
            assert self.owed == []
            assert self.channel.statistics().answers_waiting == 0
            assert self.close_sent is self.closed


TestConversation = Conversation.TestCase
