"""Advanced Manifests: the member `transform`, for devices that do not send the Manifest's JSON.

A payload is unwrapped, read by its format, and given to an expression whose result is the `data` that the Manifest
normalises. A payload that cannot be transformed is a failed message (reference 8.4): its sender gets a `mid`, and the
reason goes to the failed-message log.
"""

from dataclasses import dataclass
from functools import cached_property

import msgspec

from broker.device_types.expressions import Expression, ExpressionFailedError
from broker.device_types.payload_formats import PayloadEncoding, PayloadFormat, PayloadUnreadableError, unwrap
from config.limits import MAX_DATA_BYTES

_encode = msgspec.json.Encoder().encode


class TransformFailedError(Exception):
    """The payload cannot be transformed; the text is the reason in the failed-message log."""


@dataclass(frozen=True)
class Transform:
    """How the payloads of one Manifest version become `data`. `expression` None takes what the format reads."""

    format: PayloadFormat
    encoding: PayloadEncoding = PayloadEncoding.RAW
    expression: str | None = None

    @cached_property
    def _expression(self) -> Expression | None:
        return None if self.expression is None else Expression(self.expression)

    def apply(self, payload: bytes) -> bytes:
        """The JSON text of an object, at most `MAX_DATA_BYTES` long. Raises TransformFailedError."""
        try:
            value = self.format.read(unwrap(payload, self.encoding))
        except PayloadUnreadableError as error:
            raise TransformFailedError(f"payload: {error}") from error
        if self._expression is not None:
            try:
                value = self._expression.evaluate(value)
            except ExpressionFailedError as error:
                raise TransformFailedError(f"expression: {error}") from error
        if not isinstance(value, dict):
            raise TransformFailedError("the result is no object")
        try:
            data = _encode(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise TransformFailedError(f"the result is no JSON: {error}") from error
        if len(data) > MAX_DATA_BYTES:
            raise TransformFailedError(f"the result is larger than {MAX_DATA_BYTES} bytes")
        return data
