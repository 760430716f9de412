"""Fields of a Manifest that have the values of LWM2M resources, and the models that describe these (reference 18.6)."""

from collections.abc import Callable, Iterator

from broker.device_types.manifest import Field, Manifest
from broker.errors import Finding, ValidationFailed, invalid

#: Returns why a field cannot have the values of its resource; None if it can. Given: a field with `lwm2m`.
ResourceProblem = Callable[[Field], str | None]


def check_resources(manifest: Manifest, problem_of: ResourceProblem) -> None:
    """Raises ValidationFailed with every field that does not fit its resource."""
    if manifest.resources and (found := tuple(_findings(manifest.fields, "fields", problem_of))):
        raise ValidationFailed(found)


def _findings(fields: tuple[Field, ...], path: str, problem_of: ResourceProblem) -> Iterator[Finding]:
    for index, field in enumerate(fields):
        at = f"{path}.{index}"
        if field.is_group:
            yield from _findings(field.children, f"{at}.children", problem_of)
        elif field.lwm2m is not None and (problem := problem_of(field)) is not None:
            yield Finding(f"{at}.lwm2m", (invalid(problem),))
