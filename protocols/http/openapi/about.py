"""This document, and what it says before the first call (reference 3, 4 and 21)."""

from importlib.resources import files
from typing import Final

from protocols.http.openapi.operation import Answer, Noun, Operation
from protocols.http.openapi.shapes import free, record, text

#: In Markdown, of which there are only headings, paragraphs, lists and `code`.
OVERVIEW: Final = files("protocols.http.openapi").joinpath("overview.md").read_text(encoding="utf-8")

ABOUT: Final = Noun(
    "This document",
    "The description of the API itself.",
    (
        Operation(
            method="GET",
            path="/openapi.json",
            summary="This document",
            about="OpenAPI 3.1. It has an ETag; the same as pages for people is at `/docs`.",
            counted=None,
            answer=Answer(
                {
                    **record({"openapi": text("Version of OpenAPI"), "info": free("Title, version, description")}),
                    "additionalProperties": True,
                },
                {"openapi": "3.1.0", "info": {"title": "Trunkline", "version": "1.1"}},
                headers={"ETag": text("Of this version of the document")},
            ),
        ),
    ),
)
