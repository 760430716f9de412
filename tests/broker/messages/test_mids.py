"""Public message ids: only ids that this store issued are accepted."""

from hypothesis import given
from hypothesis import strategies as st

from broker.ids import is_id
from broker.messages.mids import Mids
from storage.keys import Position

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
positions = st.integers(0, 2**63 - 1)


@given(positions)
def test_a_mid_leads_back_to_its_position(position: int) -> None:
    mid = Mids(KEY).mid(Position(position))
    assert is_id(mid)
    assert Mids(KEY).position(mid) == position


@given(positions, positions)
def test_mids_grow_with_the_log(one: int, another: int) -> None:
    mids = Mids(KEY)
    assert (mids.mid(Position(one)) < mids.mid(Position(another))) is (one < another)


@given(positions)
def test_the_mid_of_another_store_is_unknown(position: int) -> None:
    assert Mids(KEY).position(Mids(OTHER_KEY).mid(Position(position))) is None


@given(positions, st.integers(0, 31), st.sampled_from("0123456789abcdef"))
def test_a_changed_mid_is_unknown(position: int, index: int, character: str) -> None:
    mid = Mids(KEY).mid(Position(position))
    changed = mid[:index] + character + mid[index + 1 :]
    assert Mids(KEY).position(changed) == (position if changed == mid else None)


@given(positions)
def test_a_mid_is_compared_exactly(position: int) -> None:
    mids = Mids(KEY)
    mid = mids.mid(Position(position))
    others = [
        f" {mid}",
        f"{mid} ",
        f"{mid}\n",
        mid[:-1],
        mid + "0",
        f"0x{mid[2:]}",
        *([mid.upper()] * (mid != mid.upper())),
    ]
    assert [mids.position(other) for other in others] == [None] * len(others)


@given(st.one_of(st.text(), st.text("0123456789abcdef", min_size=32, max_size=32)))
def test_any_other_text_is_unknown(text: str) -> None:
    assert Mids(KEY).position(text) is None


def test_a_position_that_no_log_reaches_is_unknown() -> None:
    # Its tag is right, but it is too large for a row.
    assert Mids(KEY).position(Mids(KEY).mid(Position(2**63))) is None
