"""The forms of ids and secrets (reference 1.1)."""

from broker.ids import is_device_type_id, is_id, is_unique_name, new_device_type_id, new_id
from tests.rows import each_row


def test_new_ids_have_their_form_and_do_not_repeat() -> None:
    ids = {new_id() for _ in range(100)}
    types = {new_device_type_id() for _ in range(100)}
    assert len(ids) == len(types) == 100
    assert all(map(is_id, ids))
    assert all(is_device_type_id(one) and one.startswith("dt") and is_id(one[2:]) for one in types)


@each_row(
    "text", ["", "0" * 31, "0" * 33, "A" * 32, "g" * 32, " " + "0" * 32, "0" * 32 + "\n", "٠" * 32, "0x" + "0" * 30]
)
def test_texts_that_are_no_id(text: str) -> None:
    assert not is_id(text)


@each_row(
    ("text", "valid"),
    [
        ("dt" + "0" * 32, True),
        ("a", True),
        ("Plain_name-1.2", True),
        ("x" * 64, True),
        ("x" * 65, False),
        ("", False),
        ("a b", False),
        ("a/b", False),
        ("ä", False),
        ("a\n", False),
    ],
)
def test_device_type_ids_may_be_plain_names(text: str, valid: bool) -> None:
    assert is_device_type_id(text) is valid


@each_row(
    ("text", "valid"),
    [
        ("example.smart_light", True),
        ("a.b", True),
        ("a.1.2", True),
        ("a.b." + "c" * 124, True),
        ("a.b." + "c" * 125, False),
        ("example", False),
        ("Example.light", False),
        ("1a.b", False),
        ("a..b", False),
        (".a", False),
        ("a.", False),
        ("a.b-c", False),
        ("a.b\n", False),
        ("", False),
    ],
)
def test_unique_names_are_lower_case_package_names(text: str, valid: bool) -> None:
    assert is_unique_name(text) is valid
