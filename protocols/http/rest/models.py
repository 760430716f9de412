"""/ml/models: models that predict values and find anomalies (reference 12.6)."""

from typing import Annotated, Any, Final

from msgspec import UNSET, UnsetType

from broker.accounts.tokens import Caller
from broker.models.definition import ModelStatus, ModelType
from broker.models.learner import LearningNotInstalled
from broker.models.models import NOT_READY, OF_A_RULE, TOO_MANY_MODELS, Model
from broker.models.room import ModelsRoom
from config.limits import MODEL_AHEAD_SECONDS, MODEL_BODY_BYTES, MODEL_SOURCES_MAX
from protocols.http.calls import NOTHING, USER_OR_APPLICATION, Accepts, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.schema import (
    Count,
    Data,
    Id,
    NumberedPage,
    Offset,
    Shape,
    Timestamp,
    about,
    integer,
    one_of,
)

_MODEL: Final = "/ml/models/{modelId}"
_CRON: Final = "0 3 * * * *"
_SOURCE: Final = {"did": samples.DID, "field": "temperature"}
_PARAMETERS: Final = {"sourceToPredict": _SOURCE, "predictIn": 300}
_INPUT: Final = f"{samples.DID}.temperature"
_EXAMPLE: Final[dict[str, Any]] = {
    "id": samples.MODEL,
    "uid": samples.UID,
    "aid": samples.AID,
    "version": 1,
    "type": "prediction",
    "data": {"sources": [_SOURCE]},
    "parameters": _PARAMETERS,
    "inputs": [{"name": _INPUT, "type": "Double"}],
    "outputs": [{"name": "predicted", "type": "Double"}],
    "trainingCron": _CRON,
    "origin": "user",
    "status": "training",
    "createdOn": samples.TS,
}
_NEW: Final = {"uid": samples.UID, "data": _EXAMPLE["data"], "type": "prediction", "parameters": _PARAMETERS}


class _Source(Shape):
    # Only described, as all of a definition: the broker reads it, so that all findings come at once.
    example = _SOURCE

    did: Id
    field: Annotated[str, about("Dotted path of a field with numbers or booleans")]


class _Sources(Shape):
    sources: Annotated[list[_Source], about("What the model looks at", minItems=1, maxItems=MODEL_SOURCES_MAX)]


class _Parameters(Shape, kw_only=True):
    source_to_predict: _Source
    predict_in: (
        Annotated[int, integer("Seconds; of a prediction", lowest=1, highest=MODEL_AHEAD_SECONDS)] | UnsetType
    ) = UNSET
    anomaly_detection_sensitivity: (
        Annotated[float, about("0 to 100, by default 50; of an anomaly detection", minimum=0, maximum=100)] | UnsetType
    ) = UNSET


_Type = Annotated[str, one_of(tuple(ModelType))]


class _NewModel(Shape, kw_only=True):
    uid: Annotated[Id, about("Whose model it is; required with an application token")] | None = None
    data: _Sources
    type: _Type
    parameters: _Parameters


class _Port(Shape):
    example = {"name": _INPUT, "type": "Double"}

    name: Annotated[str, about("An input: the device's id and the field")]
    type: Annotated[str, about("The value class of the field")]


class ModelObject(Shape, kw_only=True):
    shape = "Model"
    example = _EXAMPLE

    id: Id
    uid: Annotated[Id, about("Whose model it is")]
    aid: Annotated[Id, about("The application that made it")]
    version: Annotated[int, about("Always 1")]
    type: _Type
    data: _Sources
    parameters: _Parameters
    inputs: list[_Port]
    outputs: list[_Port]
    training_cron: Annotated[str, about("When it is trained again: at 03:00 GMT")]
    origin: Annotated[str, one_of(("user", "rule"))]
    status: Annotated[str, one_of(tuple(ModelStatus))]
    reason: Annotated[str, about("Why it is not ready; absent when it is")] | UnsetType = UNSET
    created_on: Timestamp


class _ModelsQuery(Shape):
    uid: Annotated[str, about("Whose models; required with an application token", maxLength=64)] | None = None
    count: Count = 100
    offset: Offset = 0


class _Input(Shape):
    example = {"name": _INPUT, "value": 21.5}

    name: str
    value: Annotated[Any, about("A number or a boolean", type=["number", "boolean"])]


class _Inputs(Shape):
    inputs: Annotated[list[_Input], about("An input that is left out counts as its mean in training")]


class _Output(Shape):
    example = {"name": "predicted", "value": 21.5, "confidence": 0.8}

    name: Annotated[str, one_of(("predicted", "anomaly"))]
    value: Annotated[Any, about("Of the field's class; of an anomaly a boolean", type=["number", "boolean"])]
    confidence: Annotated[float, about("How much of the values' changes the model explains", minimum=0, maximum=1)]


class _Outputs(Shape):
    outputs: list[_Output]


class ModelCalls(RestCalls):
    chapter = Chapter(
        "Models",
        "Models learn from the last 30 days of devices, at once and every night. One predicts a value, another "
        "says whether a value is unusual. Rules use them as transformers.",
    )
    path_names = {"modelId": (Annotated[Id, about("A model")], samples.MODEL)}

    def __init__(self, models: ModelsRoom) -> None:
        self._models = models.models

    async def _model(self, caller: Caller, model_id: str) -> Model:
        return await self._models.find(caller, model_id)

    @RestCall(
        "POST",
        "/ml/models",
        tokens=USER_OR_APPLICATION,
        on=NOTHING,
        summary="Make a model",
        about="Needs READ on every device that it names. Its training begins at once; with fewer than 50 values of the "
        "field it waits for more. Everything that is wrong is answered at once.",
        body_limit=MODEL_BODY_BYTES,
        accepts=Accepts({"application/json": _NewModel}, _NEW),
        refusals={409: TOO_MANY_MODELS, 501: LearningNotInstalled.template},
    )
    async def create(self, caller: Caller, body: dict[str, Any]) -> Data[ModelObject]:
        return Data(_object(await self._models.create(caller, body)))

    @RestCall(
        "GET",
        "/ml/models",
        tokens=USER_OR_APPLICATION,
        on=NOTHING,
        summary="List a user's models",
        about="Those whose devices the caller may read, oldest first.",
    )
    async def page(self, caller: Caller, query: _ModelsQuery) -> NumberedPage[list[ModelObject]]:
        models, total = await self._models.page(caller, query.uid, offset=query.offset, count=query.count)
        return NumberedPage(list(map(_object, models)), total=total, offset=query.offset, count=len(models))

    @RestCall("GET", _MODEL, tokens=USER_OR_APPLICATION, on=_model, summary="Read a model")
    async def read(self, model: Model) -> Data[ModelObject]:
        return Data(_object(model))

    @RestCall(
        "DELETE",
        _MODEL,
        tokens=USER_OR_APPLICATION,
        on=_model,
        summary="Delete a model",
        about="A model that was made for a rule goes with its rule.",
        refusals={409: OF_A_RULE},
    )
    async def remove(self, model: Model) -> Data[ModelObject]:
        await self._models.remove(model)
        return Data(_object(model))

    @RestCall(
        "POST",
        f"{_MODEL}/predict",
        tokens=USER_OR_APPLICATION,
        on=_model,
        summary="Ask a model",
        about="What it predicts from these values, as if they were measured now; or whether the value is unusual.",
        body_limit=MODEL_BODY_BYTES,
        accepts=Accepts({"application/json": _Inputs}, {"inputs": [{"name": _INPUT, "value": 21.5}]}),
        refusals={409: NOT_READY},
    )
    async def predict(self, model: Model, body: dict[str, Any]) -> Data[_Outputs]:
        answer = self._models.predict(model, body.get("inputs"))
        return Data(_Outputs([_Output(model.outputs[0].name, answer.value, answer.confidence)]))


def _object(model: Model) -> ModelObject:
    record, definition = model.record, model.definition
    is_anomaly = record.type == ModelType.ANOMALY
    target = definition.target
    return ModelObject(
        id=record.id,
        uid=record.user_id,
        aid=record.application_id,
        version=1,
        type=record.type,
        data=_Sources([_Source(one.did, one.field) for one in definition.sources]),
        parameters=_Parameters(
            source_to_predict=_Source(target.did, target.field),
            predict_in=UNSET if definition.ahead_seconds is None else definition.ahead_seconds,
            anomaly_detection_sensitivity=definition.sensitivity if is_anomaly else UNSET,
        ),
        inputs=[_Port(one.name, one.type) for one in model.inputs],
        outputs=[_Port(one.name, one.type) for one in model.outputs],
        training_cron=_CRON,
        origin="user" if record.rule is None else "rule",
        status=record.status,
        reason=record.reason or UNSET,
        created_on=record.created_on,
    )
