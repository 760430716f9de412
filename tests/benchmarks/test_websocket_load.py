"""The load generator's count of frames."""

from hypothesis import given
from hypothesis import strategies as st

from protocols.websocket.wire import encode_close_frame, encode_ping_frame, encode_text_frame
from tests.benchmarks.websocket_load import Frames

_DATA = (b"a" * 60, b"b" * 60, b"a" * 125, b"a" * 126, b"a" * 300, b"c" * 301)
_PING = b'{"type":"ping","ts":1760000000000}'
_LIKE_A_PING = b"p" * len(_PING)
_KINDS = st.sampled_from((*_DATA, _LIKE_A_PING, _PING, None)) | st.sampled_from(_DATA[3:5])


@given(
    kinds=st.lists(st.tuples(_KINDS, st.integers(1, 6)), max_size=12),
    cuts=st.lists(st.integers(1, 900), max_size=8),
)
def test_every_frame_counts_once(kinds: list[tuple[bytes | None, int]], cuts: list[int]) -> None:
    sent = [payload for payload, repeated in kinds for _ in range(repeated)]
    stream = b"".join(encode_ping_frame() if one is None else encode_text_frame(one) for one in sent)
    stream += encode_close_frame(1013, "reads too slowly")
    frames = Frames()
    for cut in cuts:
        frames.feed(stream[:cut])
        stream = stream[cut:]
    frames.feed(stream)
    pings = sent.count(_PING)
    assert (frames.data, frames.pings, frames.closed) == (len(sent) - sent.count(None) - pings, pings, 1013)
