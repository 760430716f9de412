"""Tags of device types (reference 8.1)."""

from typing import Final

from protocols.http.openapi.operation import USER_OR_APPLICATION, Answer, Noun, Operation, Parameter
from protocols.http.openapi.shapes import array, boolean, data, ids, integer, one_of, record, ref, text

_TAGS: Final = Answer(
    data(record({"tags": array(ref("Tag"))})), {"data": {"tags": [{"name": "health", "isCategory": True}]}}
)

TAGS: Final = Noun(
    "Tags",
    "The words by which device types are found. Some of them are categories.",
    (
        Operation(
            method="GET",
            path="/tags",
            summary="Tags in use",
            tokens=USER_OR_APPLICATION,
            query=(Parameter("categories", ids("Only tags of types in these categories")),),
            answer=_TAGS,
        ),
        Operation(
            method="GET",
            path="/tags/categories",
            summary="The categories",
            tokens=USER_OR_APPLICATION,
            answer=_TAGS,
        ),
        Operation(
            method="GET",
            path="/tags/suggestions",
            summary="Tags that begin like this",
            tokens=USER_OR_APPLICATION,
            query=(
                Parameter("name", text("How they begin")),
                Parameter("tags", ids("Tags that they are used together with")),
                Parameter("count", integer("Tags at most", lowest=1, highest=100, default=10)),
                Parameter("entityType", one_of(("devicetype",), "May be given; `entity_type` is the same")),
            ),
            answer=_TAGS,
        ),
    ),
    {"Tag": record({"name": text(), "isCategory": boolean()})},
)
