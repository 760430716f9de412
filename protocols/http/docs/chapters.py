"""The contents of the pages, made of the OpenAPI document: chapters with calls."""

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from protocols.http.docs.rows import MemberRow, MemberRows


class _Refusal(msgspec.Struct, frozen=True):
    status: str
    reason: str


class FormRows(msgspec.Struct, frozen=True):
    """One of the forms that a body may have."""

    about: str
    rows: tuple[MemberRow, ...]


class DocumentedCall(msgspec.Struct, frozen=True):
    anchor: str
    method: str
    path: str
    summary: str
    about: str
    tokens: tuple[str, ...]
    needs_certificate: bool
    in_path: tuple[MemberRow, ...]
    in_query: tuple[MemberRow, ...]
    in_headers: tuple[MemberRow, ...]
    body_types: tuple[str, ...]
    body: tuple[FormRows, ...]
    curl: str
    status: str
    answer_about: str
    answer_type: str
    answer: tuple[MemberRow, ...]
    example: str
    refusals: tuple[_Refusal, ...]


class DocumentedSample(msgspec.Struct, frozen=True):
    title: str
    code: str


class DocumentedChapter(msgspec.Struct, frozen=True):
    slug: str
    title: str
    about: str
    calls: tuple[DocumentedCall, ...]
    samples: tuple[DocumentedSample, ...]


def chapters(document: Mapping[str, Any]) -> tuple[DocumentedChapter, ...]:
    """The chapters in the order of the document."""
    reader = _Reader(document)
    return tuple(
        DocumentedChapter(
            slug_of(tag["name"]),
            tag["name"],
            tag["description"],
            tuple(reader.calls(tag["name"])),
            tuple(DocumentedSample(one["title"], one["code"]) for one in tag.get("x-samples", ())),
        )
        for tag in document["tags"]
    )


def slug_of(title: str) -> str:
    """The name of a chapter or a section in addresses."""
    return title.lower().replace(" ", "-")


class _Reader:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._rows = MemberRows(document)
        self._server: str = document["servers"][0]["url"]

    def calls(self, tag: str) -> Iterator[DocumentedCall]:
        for path, methods in self._document["paths"].items():
            for method, operation in methods.items():
                if tag in operation["tags"]:
                    yield self._call(method.upper(), path, operation)

    def _call(self, method: str, path: str, operation: Mapping[str, Any]) -> DocumentedCall:
        parameters = operation.get("parameters", [])
        content = operation.get("requestBody", {}).get("content", {})
        (status, answer), *refusals = operation["responses"].items()
        (answer_type, media), *_ = answer.get("content", {"": {}}).items()
        return DocumentedCall(
            anchor=operation["operationId"],
            method=method,
            path=path,
            summary=operation["summary"],
            about=operation.get("description", ""),
            tokens=tuple(operation["x-token-kinds"]),
            needs_certificate=_needs_certificate(operation),
            in_path=self._parameters(parameters, "path"),
            in_query=self._parameters(parameters, "query"),
            in_headers=self._parameters(parameters, "header"),
            body_types=tuple(content),
            body=self._body(content),
            curl=self._curl(method, path, operation),
            status=status,
            answer_about=answer["description"],
            answer_type=answer_type,
            answer=tuple(self._rows.of_members(media.get("schema", {}))),
            example=_pretty(media["example"]) if "example" in media else "",
            refusals=tuple(self._refusal(status, refusal) for status, refusal in refusals),
        )

    def _parameters(self, parameters: list[Mapping[str, Any]], place: str) -> tuple[MemberRow, ...]:
        return tuple(
            self._rows.of_one(one["name"], one["schema"], required=one["required"])
            for one in parameters
            if one["in"] == place
        )

    def _body(self, content: Mapping[str, Any]) -> tuple[FormRows, ...]:
        """The forms of a body in its first content type: the schemas of the others are the same."""
        if not content:
            return ()
        schema = next(iter(content.values()))["schema"]
        shapes = (
            FormRows(one.get("description", ""), tuple(self._rows.of_members(one)))
            for one in self._rows.alternatives(schema)
        )
        return tuple(shape for shape in shapes if shape.rows or shape.about)

    def _refusal(self, status: str, refusal: Mapping[str, Any]) -> _Refusal:
        if "$ref" in refusal:
            refusal = self._document["components"]["responses"][refusal["$ref"].rpartition("/")[2]]
        return _Refusal(status.replace("XX", "xx"), refusal["description"])

    def _curl(self, method: str, path: str, operation: Mapping[str, Any]) -> str:
        parameters = operation.get("parameters", [])
        examples = {(one["in"], one["name"]): one["example"] for one in parameters if "example" in one}
        for (place, name), example in examples.items():
            if place == "path":
                path = path.replace(f"{{{name}}}", str(example))
        query = urlencode({name: example for (place, name), example in examples.items() if place == "query"})
        needs_certificate = _needs_certificate(operation)
        url = shlex.quote(f"{self._server}{path}{'?' if query else ''}{query}")
        words = ["curl"] if method == "GET" else ["curl", "-X", method]
        words.append(f'"$SECURE_URL{path}"' if needs_certificate else url)
        lines = [" ".join(words)]
        if operation["x-token-kinds"]:
            lines.append('-H "Authorization: bearer $TOKEN"')
        if needs_certificate:
            lines.append("--cert device.pem --key device.key")
        lines += [
            f"-H {shlex.quote(f'{name}: {example}')}"
            for (place, name), example in examples.items()
            if place == "header"
        ]
        lines += _sent(operation.get("requestBody", {}).get("content", {}))
        return " \\\n  ".join(lines)


def _needs_certificate(operation: Mapping[str, Any]) -> bool:
    return {"certificate": []} in operation.get("security", ())


def _sent(content: Mapping[str, Any]) -> Iterator[str]:
    for content_type, media in content.items():
        example = media.get("example")
        if content_type == "application/x-www-form-urlencoded":
            yield from (f"-d {shlex.quote(f'{name}={value}')}" for name, value in example.items())
        elif isinstance(example, str):
            yield f"-H 'Content-Type: {content_type}' --data-binary {shlex.quote(example)}"
        else:
            yield f"-d {shlex.quote(json.dumps(example, ensure_ascii=False, separators=(',', ':')))}"
        return


def _pretty(example: object) -> str:
    return example if isinstance(example, str) else json.dumps(example, ensure_ascii=False, indent=2)
