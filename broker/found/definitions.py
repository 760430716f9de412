"""Fields, Actions and topics of a found device, made from the components that were announced (reference 16.9)."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from broker.errors import ValidationFailed
from broker.found.announcements import Announced
from broker.found.components import AvailabilityTopic, FieldReading, FoundComponent, NotTakenError, TopicCommand
from broker.found.platforms import PLATFORMS
from broker.found.templates import Template, TemplateRefusedError
from config.limits import FOUND_TEXT_CHARACTERS, FOUND_TOPIC_NODES

_decode: Final = msgspec.json.Decoder().decode


class NotTaken(msgspec.Struct, frozen=True):
    """Something of a component that is not taken over."""

    component: str
    text: str


class FoundDefinition(msgspec.Struct, frozen=True):
    """`manifest` is the document of a device type."""

    manifest: Mapping[str, Any]
    readings: tuple[FieldReading, ...] = ()
    settings: Mapping[str, TopicCommand] = {}
    availability: tuple[AvailabilityTopic, ...] = ()
    problems: tuple[NotTaken, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.manifest["fields"] and not self.manifest["actions"]


def definition_of(components: Iterable[Announced]) -> FoundDefinition:
    """Each component that cannot be taken is a problem, and the others are taken."""
    maker = _Maker()
    for component in sorted(components, key=lambda one: (one.topic, one.id)):
        maker.add(component)
    return maker.definition()


class _Maker:
    def __init__(self) -> None:
        self._fields: dict[str, dict[str, Any]] = {}
        self._actions: dict[str, dict[str, Any]] = {}
        self._readings: list[FieldReading] = []
        self._settings: dict[str, TopicCommand] = {}
        self._availability: dict[str, AvailabilityTopic] = {}
        self._problems: list[NotTaken] = []
        self._cost: dict[str, int] = {}

    def definition(self) -> FoundDefinition:
        manifest = {"fields": list(self._fields.values()), "actions": list(self._actions.values())}
        return FoundDefinition(
            manifest, tuple(self._readings), self._settings, tuple(self._availability.values()), tuple(self._problems)
        )

    def add(self, component: Announced) -> None:
        made = FoundComponent(component)
        maker = PLATFORMS.get(component.platform)
        try:
            if maker is None:
                raise NotTakenError(f"{component.platform} is no kind of component that Trunkline knows")
            maker(made)
            self._check(made)
        except (NotTakenError, TemplateRefusedError) as error:
            self._problems.append(NotTaken(component.id, str(error)))
            return
        self._problems += [NotTaken(component.id, text) for text in made.notes]
        names = self._put_fields(made)
        for reading in made.readings:
            self._cost[reading.topic] = self._cost.get(reading.topic, 0) + reading.cost
            self._readings.append(msgspec.structs.replace(reading, field=names[reading.field]))
        for action, setting in made.settings.items():
            name = _free(action, self._actions)
            self._actions[name] = {**made.actions[action], "name": name}
            self._settings[name] = setting
        for one in made.availability():
            self._availability.setdefault(one.topic, one)

    def _check(self, made: "FoundComponent") -> None:
        costs = dict[str, int]()
        for reading in made.readings:
            costs[reading.topic] = costs.get(reading.topic, 0) + reading.cost
        for topic, cost in costs.items():
            if self._cost.get(topic, 0) + cost > FOUND_TOPIC_NODES:
                raise NotTakenError(f"the templates for one message have more than {FOUND_TOPIC_NODES} parts")
        if len(self._fields) + len(made.fields) > 450 or len(self._actions) + len(made.actions) > 100:
            raise NotTakenError("a device has at most 450 fields and 100 Actions")

    def _put_fields(self, made: "FoundComponent") -> dict[str, str]:
        """The names that the fields got, by their own."""
        names = {}
        for name, field in made.fields.items():
            names[name] = free = _free(name, self._fields)
            self._fields[free] = {**field, "name": free}
        return names


def _free(name: str, taken: Mapping[str, object]) -> str:
    if name not in taken:
        return name
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"


class PublishedState:
    """A published state as templates see it: `value` and, where it is JSON, `value_json`."""

    __slots__ = ("_json", "text")

    def __init__(self, payload: bytes) -> None:
        """Raises ValidationFailed: it is no text, or too long."""
        if len(payload) > FOUND_TEXT_CHARACTERS:
            raise ValidationFailed.of("payload", f"Maximum length {FOUND_TEXT_CHARACTERS}")
        try:
            self.text = payload.decode()
        except UnicodeDecodeError:
            raise ValidationFailed.of("payload", "Text field only") from None
        try:
            self._json: dict[str, Any] = {"value_json": _decode(payload)}
        except (msgspec.DecodeError, RecursionError):
            self._json = {}

    def rendered(self, template: Template | None) -> str | None:
        return self.text.strip() if template is None else template.render(value=self.text, **self._json)


def values_of(readings: Iterable[FieldReading], payload: bytes) -> dict[str, Any]:
    """The fields that are read of a message. Raises ValidationFailed."""
    state, found = PublishedState(payload), dict[str, Any]()
    for reading in readings:
        text = state.rendered(reading.template)
        value = None if text is None else reading.value(text)
        if value is not None:
            found[reading.field] = value
    return found
