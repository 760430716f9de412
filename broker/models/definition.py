"""Definition of a model: read from JSON, and checked against the Manifests of its devices (reference 12.6).

All findings are collected, so that a caller learns of all of them at once.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from broker.device_types.manifest import ValueClass
from broker.devices.registry import Device
from broker.errors import NUMERIC_ONLY, REQUIRED, TEXT_ONLY, Finding, choice, invalid, too_high, too_long, too_low
from config.limits import MODEL_AHEAD_SECONDS, MODEL_SENSITIVITY, MODEL_SOURCES_MAX

_WHOLE: Final = frozenset({ValueClass.INTEGER, ValueClass.LONG})


class ModelType(StrEnum):
    PREDICTION = "prediction"
    ANOMALY = "anomalyDetectionUsingPrediction"


class ModelStatus(StrEnum):
    TRAINING = "training"
    READY = "ready"
    ERROR = "error"


class ModelSource(msgspec.Struct, frozen=True):
    """A field of a device, by its dotted path."""

    did: str
    field: str

    @property
    def name(self) -> str:
        """The name of the input with its values."""
        return f"{self.did}.{self.field}"


class Port(msgspec.Struct, frozen=True):
    """An input or an output. `type` is the value class of its field."""

    name: str
    type: str


class Definition(msgspec.Struct, frozen=True):
    """`ahead_seconds` is None and `sensitivity` counts for anomalies only."""

    sources: tuple[ModelSource, ...]
    target: ModelSource
    ahead_seconds: int | None
    sensitivity: float

    @property
    def all_sources(self) -> tuple[ModelSource, ...]:
        return tuple(dict.fromkeys((*self.sources, self.target)))

    @property
    def dids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.did for one in self.all_sources))


def read_definition(members: Mapping[str, Any], findings: list[Finding]) -> tuple[ModelType, Definition] | None:
    """The definition in the body of a call; None when it has findings, which are added to `findings`."""
    before = len(findings)
    kind = _type(members.get("type"), findings)
    data, parameters = _object("data", members, findings), _object("parameters", members, findings)
    sources = _sources(data.get("sources"), findings) if data is not None else ()
    target, ahead, sensitivity = None, None, None
    if parameters is not None:
        target = _source("parameters.sourceToPredict", parameters.get("sourceToPredict"), findings)
        ahead = _number("parameters.predictIn", parameters.get("predictIn"), 1, MODEL_AHEAD_SECONDS, findings)
        if ahead is None and parameters.get("predictIn") is None and kind is ModelType.PREDICTION:
            findings.append(Finding("parameters.predictIn", (REQUIRED,)))
        name = "anomalyDetectionSensitivity"
        sensitivity = _number(f"parameters.{name}", parameters.get(name), 0, 100, findings)
    if len(findings) > before or kind is None or target is None:
        return None
    is_ahead = kind is ModelType.PREDICTION
    return kind, Definition(
        sources,
        target,
        int(ahead) if is_ahead and ahead is not None else None,
        MODEL_SENSITIVITY if sensitivity is None else sensitivity,
    )


def _type(given: object, findings: list[Finding]) -> ModelType | None:
    if given is None:
        findings.append(Finding("type", (REQUIRED,)))
    elif not isinstance(given, str):
        findings.append(Finding("type", (TEXT_ONLY,)))
    elif given not in tuple(ModelType):
        findings.append(Finding("type", (invalid(choice(tuple(ModelType))),)))
    else:
        return ModelType(given)
    return None


def _object(name: str, members: Mapping[str, Any], findings: list[Finding]) -> Mapping[str, Any] | None:
    given = members.get(name)
    if isinstance(given, dict):
        return given
    findings.append(Finding(name, (REQUIRED if given is None else invalid("must be an object"),)))
    return None


def _sources(given: object, findings: list[Finding]) -> tuple[ModelSource, ...]:
    path = "data.sources"
    if not isinstance(given, list) or not 1 <= len(given) <= MODEL_SOURCES_MAX:
        problem = invalid("must be a list") if given and not isinstance(given, list) else REQUIRED
        findings.append(Finding(path, (too_long(MODEL_SOURCES_MAX) if isinstance(given, list) and given else problem,)))
        return ()
    found: dict[ModelSource, None] = {}
    for index, one in enumerate(given):
        source = _source(f"{path}.{index}", one, findings)
        if source is None:
            continue
        if source in found:
            findings.append(Finding(f"{path}.{index}", (invalid("is named twice"),)))
        found[source] = None
    return tuple(found)


def _source(path: str, given: object, findings: list[Finding]) -> ModelSource | None:
    if not isinstance(given, dict):
        findings.append(Finding(path, (REQUIRED if given is None else invalid("must be an object"),)))
        return None
    texts = []
    for name in ("did", "field"):
        text = given.get(name)
        if not isinstance(text, str | None):
            findings.append(Finding(f"{path}.{name}", (TEXT_ONLY,)))
        elif not text:
            findings.append(Finding(f"{path}.{name}", (REQUIRED,)))
        else:
            texts.append(text)
    return ModelSource(*texts) if len(texts) == 2 else None


def _number(path: str, given: object, lowest: int, highest: int, findings: list[Finding]) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float):
        findings.append(Finding(path, (NUMERIC_ONLY,)))
    elif given < lowest:
        findings.append(Finding(path, (too_low(lowest),)))
    elif given > highest:
        findings.append(Finding(path, (too_high(highest),)))
    else:
        return given
    return None


def paths_of(definition: Definition) -> list[tuple[str, ModelSource]]:
    """Each source with its place in the body."""
    placed = [(f"data.sources.{index}", source) for index, source in enumerate(definition.sources)]
    return [*placed, ("parameters.sourceToPredict", definition.target)]


def field_class(device: Device, source: ModelSource) -> ValueClass | None:
    """The class of a field with numbers or booleans; None for other and for undeclared fields."""
    field = device.manifest.manifest.field_at(source.field)
    if field is None or field.is_collection or field.value_class is ValueClass.STRING:
        return None
    return field.value_class


def check_sources(definition: Definition, devices: Mapping[str, Device | None]) -> list[Finding]:
    """The findings about the sources of a model. A device that is not in `devices` is left out."""
    findings = []
    for path, source in paths_of(definition):
        if source.did not in devices:
            continue
        device = devices[source.did]
        if device is None:
            findings.append(Finding(f"{path}.did", (f'Device "{source.did}" does not exist',)))
        elif device.manifest.manifest.field_at(source.field) is None:
            findings.append(Finding(f"{path}.field", (f'Field "{source.field}" does not exist',)))
        elif field_class(device, source) is None:
            findings.append(Finding(f"{path}.field", (invalid("has no numbers or Booleans, or is a collection"),)))
    return findings


def ports(
    kind: ModelType, definition: Definition, devices: Mapping[str, Device | None]
) -> tuple[Sequence[Port], Sequence[Port]]:
    """The inputs and outputs of a model whose sources are right. An anomaly is looked for in the target's value, so it
    is an input, too."""

    def class_of(source: ModelSource) -> str:
        device = devices[source.did]
        return "" if device is None else str(field_class(device, source))

    sources = definition.sources if kind is ModelType.PREDICTION else definition.all_sources
    inputs = [Port(source.name, class_of(source)) for source in sources]
    if kind is ModelType.PREDICTION:
        return inputs, [Port("predicted", class_of(definition.target))]
    return inputs, [Port("anomaly", str(ValueClass.BOOLEAN))]


def as_value(number: float, type_: str) -> bool | int | float:
    """A number as a value of a field's class."""
    if type_ == ValueClass.BOOLEAN:
        return number > 0.5
    return round(number) if type_ in _WHOLE else number
