"""Fields and Actions of a Manifest that are LWM2M resources, and the models of these (reference 18.6, 18.7)."""

from collections.abc import Iterator
from typing import Protocol

from broker.device_types.manifest import Field, Manifest, ResourceOperation
from broker.errors import Finding, ValidationFailed, invalid


class ResourceModels(Protocol):
    """The objects that are described."""

    def problem_of(self, field: Field) -> str | None:
        """Why a field cannot have the values of its `lwm2m`; None if it can, or if that is not described."""

    def problem_of_operation(self, operation: ResourceOperation) -> str | None:
        """Why an Action cannot be this operation; None if it can, or if its resource is not described."""


def check_resources(manifest: Manifest, models: ResourceModels | None) -> None:
    """Raises ValidationFailed with everything that does not fit its resource. Without models all fits."""
    if models is None or not (manifest.resources or manifest.operations):
        return
    found = [*_findings(manifest.fields, "fields", models)]
    for index, action in enumerate(manifest.actions):
        if action.lwm2m is not None and (problem := models.problem_of_operation(action.lwm2m)) is not None:
            found.append(Finding(f"actions.{index}.lwm2m", (invalid(problem),)))
    if found:
        raise ValidationFailed(tuple(found))


def _findings(fields: tuple[Field, ...], path: str, models: ResourceModels) -> Iterator[Finding]:
    for index, field in enumerate(fields):
        at = f"{path}.{index}"
        if field.is_group:
            yield from _findings(field.children, f"{at}.children", models)
        elif field.lwm2m is not None and (problem := models.problem_of(field)) is not None:
            yield Finding(f"{at}.lwm2m", (invalid(problem),))
