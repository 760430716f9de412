"""Block-wise transfers: which blocks belong to one body, and how much is held."""

import pytest

from broker.errors import BadRequest, BodyTooLarge
from protocols.coap.blockwise import MAX_OPERATIONS, OPERATION_SECONDS, BlockOption, Blockwise, BlockwiseOperation, cut
from protocols.coap.errors import RequestIncomplete

OPERATION: BlockwiseOperation = (2, (b"a",), ())


def _operation(tag: bytes) -> BlockwiseOperation:
    return (2, (b"a",), (tag,))


@pytest.mark.parametrize(
    ("value", "block"),
    [
        (b"", BlockOption(0, more=False, exponent=0)),
        (b"\x0e", BlockOption(0, more=True, exponent=6)),
        (b"\x12", BlockOption(1, more=False, exponent=2)),
        (b"\xff\xff\xfe", BlockOption((1 << 20) - 1, more=True, exponent=6)),
    ],
)
def test_option_value(value: bytes, block: BlockOption) -> None:
    assert BlockOption.decode(value) == block
    assert block.encode() == value


def test_reserved_size_is_refused() -> None:
    with pytest.raises(BadRequest):
        BlockOption.decode(b"\x07")


def _block(number: int, *, more: bool) -> BlockOption:
    return BlockOption(number, more, 0)


class TestCollecting:
    def test_blocks_in_order(self) -> None:
        blocks = Blockwise()
        assert blocks.collect(OPERATION, _block(0, more=True), b"a" * 16, 0) is None
        assert blocks.collect(OPERATION, _block(1, more=True), b"b" * 16, 0) is None
        assert blocks.collect(OPERATION, _block(2, more=False), b"c", 0) == b"a" * 16 + b"b" * 16 + b"c"
        assert blocks.bytes_held == 0

    def test_the_same_block_again(self) -> None:
        blocks = Blockwise()
        for number in (0, 0, 1, 1):
            assert blocks.collect(OPERATION, _block(number, more=True), bytes((number,)) * 16, 0) is None
        assert blocks.collect(OPERATION, _block(2, more=False), b"c", 0) == bytes(16) + b"\1" * 16 + b"c"

    def test_another_first_block_begins_a_new_body(self) -> None:
        blocks = Blockwise()
        for filling in (b"a", b"b"):
            blocks.collect(OPERATION, _block(0, more=True), filling * 16, 0)
        assert blocks.collect(OPERATION, _block(1, more=False), b"c", 0) == b"b" * 16 + b"c"

    def test_a_missing_block_ends_the_transfer(self) -> None:
        blocks = Blockwise()
        blocks.collect(OPERATION, _block(0, more=True), b"a" * 16, 0)
        with pytest.raises(RequestIncomplete):
            blocks.collect(OPERATION, _block(2, more=True), b"c" * 16, 0)
        with pytest.raises(RequestIncomplete):
            blocks.collect(OPERATION, _block(1, more=False), b"b" * 16, 0)
        assert blocks.bytes_held == 0

    @pytest.mark.parametrize(
        ("payload", "more"), [(b"a" * 15, True), (b"a" * 17, True), (b"a" * 17, False), (b"", True)]
    )
    def test_a_payload_that_does_not_fill_its_block(self, payload: bytes, more: bool) -> None:
        with pytest.raises(BadRequest):
            Blockwise().collect(OPERATION, _block(0, more=more), payload, 0)

    def test_a_body_that_is_too_large(self) -> None:
        blocks = Blockwise()
        for number in range(2):
            blocks.collect(OPERATION, BlockOption(number, more=True, exponent=6), bytes(1024), 0)
        with pytest.raises(BodyTooLarge):
            blocks.collect(OPERATION, BlockOption(2, more=False, exponent=6), b"a", 0)
        assert blocks.bytes_held == 0

    def test_request_tags_keep_operations_apart(self) -> None:
        blocks = Blockwise()
        for tag in (b"x", b"y"):
            blocks.collect(_operation(tag), _block(0, more=True), tag * 16, 0)
        assert blocks.collect(_operation(b"x"), _block(1, more=False), b"", 0) == b"x" * 16
        assert blocks.collect(_operation(b"y"), _block(1, more=False), b"", 0) == b"y" * 16

    @pytest.mark.parametrize("other", [(1, (b"a",), ()), (2, (b"b",), ()), (2, (b"a",), (b"tag",))])
    def test_method_path_and_tags_keep_offered_bodies_apart(self, other: BlockwiseOperation) -> None:
        blocks = Blockwise()
        blocks.offer(OPERATION, b"a", 0)
        assert blocks.offered(other, 0) is None
        blocks.offer(other, b"b", 0)
        assert (blocks.offered(OPERATION, 0), blocks.offered(other, 0)) == (b"a", b"b")

    def test_unfinished_transfers_are_bounded_in_number_and_time(self) -> None:
        blocks = Blockwise()
        for number in range(100):
            blocks.collect(_operation(bytes((number,))), BlockOption(0, more=True, exponent=6), bytes(1024), 0)
        assert blocks.bytes_held < MAX_OPERATIONS * 2000
        blocks.forget(OPERATION_SECONDS)
        assert blocks.bytes_held == 0


class TestCutting:
    BODY = bytes(range(40))

    def test_a_small_body_is_not_cut(self) -> None:
        assert cut(self.BODY, None) is None

    def test_a_large_body_is_cut_although_no_block_is_wanted(self) -> None:
        part = cut(bytes(1500), None)
        assert part is not None
        assert (part.block, len(part.payload)) == (BlockOption(0, more=True, exponent=6), 1024)

    def test_into_blocks_of_the_wanted_size(self) -> None:
        parts = [cut(self.BODY, BlockOption(number, more=False, exponent=0)) for number in range(3)]
        assert b"".join(part.payload for part in parts if part) == self.BODY
        assert [part.block.more for part in parts if part] == [True, True, False]
        assert len({part.etag for part in parts if part}) == 1

    def test_beyond_the_end(self) -> None:
        with pytest.raises(BadRequest):
            cut(self.BODY, BlockOption(3, more=False, exponent=0))

    def test_an_empty_body_has_a_first_block(self) -> None:
        part = cut(b"", BlockOption(0, more=False, exponent=0))
        assert part is not None
        assert (part.block.more, part.payload) == (False, b"")
