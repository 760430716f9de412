"""Model files: objects as the OMA registry describes them in XML (reference 18.4).

A document type declaration is refused, so that no entity is ever expanded and nothing outside the file is read.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.parsers import expat

import structlog

from broker.device_management.objects import ObjectModel, Resource
from broker.device_management.values import ValueType

_FILE_BYTES: Final = 1024 * 1024
#: By the names of the registry.
TYPES: Final = {
    "string": ValueType.STRING,
    "integer": ValueType.INTEGER,
    "unsigned integer": ValueType.UNSIGNED_INTEGER,
    "float": ValueType.FLOAT,
    "boolean": ValueType.BOOLEAN,
    "time": ValueType.TIME,
    "opaque": ValueType.OPAQUE,
    "objlnk": ValueType.STRING,
    "corelnk": ValueType.STRING,
    "": ValueType.NONE,
}
_NUMBER: Final = re.compile(r"[0-9]{1,5}")
_MOST_NUMBER: Final = 65_535
_WORD: Final = re.compile(r"[A-Za-z0-9]+")
_log = structlog.get_logger(__name__)


class ModelError(Exception):
    """The file is not a model. The text says what is wrong."""


def read_models(folder: Path) -> list[ObjectModel]:
    """The objects of every `*.xml` in a folder. A file that cannot be read is logged and left out.

    Raises OSError when the folder cannot be read.
    """
    models = []
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() != ".xml":
            continue
        try:
            if path.stat().st_size > _FILE_BYTES:
                raise ModelError(f"more than {_FILE_BYTES} bytes")
            models += parse_models(path.read_bytes())
        except (ModelError, OSError) as error:
            _log.warning("model_not_read", file=str(path), reason=str(error))
    return models


def parse_models(content: bytes) -> list[ObjectModel]:
    """The objects of one file. Raises ModelError."""
    reader = _Reader()
    reader.read(content)
    if not reader.models:
        raise ModelError("no object")
    return reader.models


class _Reader:
    def __init__(self) -> None:
        self.models: list[ObjectModel] = []
        self._path: list[str] = []
        self._text = ""
        self._object: dict[str, str] = {}
        self._item: dict[str, str] = {}
        self._resources: dict[int, Resource] = {}

    def read(self, content: bytes) -> None:
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = _refuse_doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        try:
            parser.Parse(content, True)
        except (expat.ExpatError, LookupError, ValueError) as error:  # also for an encoding that expat does not know
            raise ModelError(str(error)) from error

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        self._text = ""
        if name == "Object":
            self._object, self._resources = {}, {}
        elif name == "Item":
            self._item = {"ID": attributes.get("ID", "")}

    def _characters(self, text: str) -> None:
        self._text += text

    def _end(self, name: str) -> None:
        self._path.pop()
        parent = self._path[-1] if self._path else ""
        if parent == "Object":
            self._object[name] = self._text.strip()
        elif parent == "Item":
            self._item[name] = self._text.strip()
        if name == "Item":
            self._resources |= dict(self._resource())
        elif name == "Object":
            self.models.append(self._model())

    def _resource(self) -> Iterator[tuple[int, Resource]]:
        name = camel_case(self._item.get("Name", ""))
        kind = TYPES.get(self._item.get("Type", "").lower())
        number = _number(self._item["ID"])
        if kind is None or not name or number is None:
            raise ModelError(f"a resource is not described: {self._item}")
        taken = {resource.name for resource in self._resources.values()}
        operations = "".join(letter for letter in "RWE" if letter in self._item.get("Operations", "").upper())
        yield (
            number,
            Resource(
                f"{name}{number}" if name in taken else name,
                operations,
                kind,
                self._item.get("MultipleInstances", "").lower() == "multiple",
                self._item.get("Description", ""),
                self._item.get("Units", ""),
            ),
        )

    def _model(self) -> ObjectModel:
        name, number = camel_case(self._object.get("Name", "")), _number(self._object.get("ObjectID", ""))
        if not name or number is None:
            raise ModelError(f"an object is not described: {self._object}")
        return ObjectModel(number, name, self._resources)


def _number(text: str) -> int | None:
    """The number of an object or a resource, which has 16 bits."""
    return int(text) if _NUMBER.fullmatch(text) and int(text) <= _MOST_NUMBER else None


def _refuse_doctype(*_: object) -> None:
    raise ModelError("a document type declaration")


def camel_case(name: str) -> str:
    """A name of a model as the name of a property: `Sensor Value` is `sensorValue`. Empty when nothing is left."""
    words = _WORD.findall(name)
    if not words:
        return ""
    first, *others = words
    # An abbreviation becomes small as a whole: `IPSO Temperature` is `ipsoTemperature`.
    first = first.lower() if first.isupper() else first[0].lower() + first[1:]
    joined = first + "".join(word[0].upper() + word[1:] for word in others)
    return joined if joined[0].isalpha() else f"_{joined}"
