"""/ml/models over REST (reference 12.6). tests/broker/models has training itself."""

from typing import Any, Final

import httpx
import msgspec
import pytest

from broker.models.definition import ModelStatus
from broker.models.training import Training
from broker.services import Services
from storage.records import AuditFilter
from storage.transaction import Transaction
from tests.broker.models.worlds import learned
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    BOBS,
    DASHBOARD,
    HALL,
    KITCHEN,
    NOW_MS,
    World,
)
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_conventions import error_of
from tests.rows import each_row
from tests.wording import INVALID

UNKNOWN: Final = "f" * 32
TARGET: Final = {"did": KITCHEN, "field": "temperature"}
STATE: Final = {"did": HALL, "field": "state"}
INPUT: Final = f"{KITCHEN}.temperature"


def definition(**members: Any) -> dict[str, Any]:
    parameters = {"sourceToPredict": TARGET, "predictIn": 300}
    return {"data": {"sources": [TARGET, STATE]}, "type": "prediction", "parameters": parameters} | members


@pytest.fixture(autouse=True)
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make_ready` stands for it; the worker would look for new models at a moment of its own."""

    async def look(_training: Training) -> bool:
        return False

    monkeypatch.setattr(Training, "train", look)


async def made(api: httpx.AsyncClient, token: str = ADA_TOKEN, **members: Any) -> dict[str, Any]:
    answer = await api.post("/ml/models", json=definition(**members), headers=bearer(token))
    assert answer.status_code == 200, answer.text
    model: dict[str, Any] = answer.json()["data"]
    return model


def findings(answer: httpx.Response) -> list[tuple[str, str]]:
    assert error_of(answer, 400)["code"] == 4001
    (found,) = answer.json()["error"]["errors"]
    return [(one["field"], text) for one in found for text in one["messages"]]


async def make_ready(services: Services, model: dict[str, Any]) -> None:
    """As if it had been trained."""
    state = msgspec.json.encode(learned([one["name"] for one in model["inputs"]])).decode()

    def work(tx: Transaction) -> None:
        record = tx.models.by_id(model["id"])
        assert record is not None
        tx.models.set_training(
            record.key,
            status=ModelStatus.READY,
            reason="",
            next_training_on=NOW_MS + 86_400_000,
            trained_on=NOW_MS,
            state=state,
        )

    await services.core.database.write(work)


async def test_every_call_answers_the_model(api: httpx.AsyncClient, services: Services, world: World) -> None:
    ada, model = bearer(ADA_TOKEN), await made(api)
    assert model == {
        "id": model["id"],
        "uid": ADA,
        "aid": DASHBOARD,
        "version": 1,
        "type": "prediction",
        "data": {"sources": [TARGET, STATE]},
        "parameters": {"sourceToPredict": TARGET, "predictIn": 300},
        "inputs": [{"name": INPUT, "type": "Double"}, {"name": f"{HALL}.state", "type": "Boolean"}],
        "outputs": [{"name": "predicted", "type": "Double"}],
        "trainingCron": "0 3 * * * *",
        "origin": "user",
        "status": "training",
        "reason": "is training",
        "createdOn": NOW_MS,
    }
    path = f"/ml/models/{model['id']}"
    assert (await api.get(path, headers=ada)).json() == {"data": model}
    assert (await api.delete(path, headers=ada)).json() == {"data": model}
    error_of(await api.get(path, headers=ada), 404)
    about = AuditFilter(0, NOW_MS * 2, 9, object=f"model {model['id']}")
    entries = await services.core.database.read(lambda tx: tx.audit.find(about))
    assert [(one.event, one.details["owner"]) for one in entries] == [("model_created", ADA), ("model_removed", ADA)]


async def test_an_anomaly_detection_has_a_sensitivity_and_looks_at_the_value_itself(
    api: httpx.AsyncClient, world: World
) -> None:
    for given, expected in (({}, 50), ({"anomalyDetectionSensitivity": 0}, 0), ({"predictIn": 9}, 50)):
        parameters = {"sourceToPredict": TARGET, **given}
        model = await made(
            api, type="anomalyDetectionUsingPrediction", data={"sources": [STATE]}, parameters=parameters
        )
        assert model["parameters"] == {"sourceToPredict": TARGET, "anomalyDetectionSensitivity": expected}
        assert [one["name"] for one in model["inputs"]] == [f"{HALL}.state", INPUT]
        assert model["outputs"] == [{"name": "anomaly", "type": "Boolean"}]


async def test_lists_are_of_one_user(api: httpx.AsyncClient, world: World) -> None:
    models = [await made(api), await made(api, APPLICATION_TOKEN, uid=ADA), await made(api)]
    for query, token in (("", ADA_TOKEN), (f"uid={ADA}", ADA_TOKEN), (f"uid={ADA}", APPLICATION_TOKEN)):
        answer = await api.get(f"/ml/models?{query}&count=2&offset=1", headers=bearer(token))
        assert answer.json() == {"data": models[1:], "total": 3, "offset": 1, "count": 2}
    assert (await api.get("/ml/models", headers=bearer(BOB_TOKEN))).json()["total"] == 0
    assert findings(await api.get("/ml/models", headers=bearer(APPLICATION_TOKEN))) == [("uid", "Required parameter")]
    error_of(await api.get(f"/ml/models?uid={BOB}", headers=bearer(ADA_TOKEN)), 403)
    assert error_of(await api.get(f"/ml/models?uid={UNKNOWN}", headers=bearer(ADA_TOKEN)), 404)["code"] == 1201


SENSITIVITY: Final = "parameters.anomalyDetectionSensitivity"


@each_row(
    ("members", "expected"),
    [
        (
            {"data": None, "type": None, "parameters": None},
            [("type", "Required parameter"), ("data", "Required parameter"), ("parameters", "Required parameter")],
        ),
        (
            {"data": 5, "type": 5, "parameters": []},
            [("type", "Text field only"), ("data", INVALID), ("parameters", INVALID)],
        ),
        (
            {"data": {"sources": []}, "type": "guess", "parameters": {"predictIn": 0}},
            [
                ("type", INVALID),
                ("data.sources", "Required parameter"),
                ("parameters.sourceToPredict", "Required parameter"),
                ("parameters.predictIn", "Minimum value 1"),
            ],
        ),
        (
            {"data": {"sources": [5, {}, {"did": 5, "field": ""}, TARGET, TARGET]}},
            [
                ("data.sources.0", INVALID),
                ("data.sources.1.did", "Required parameter"),
                ("data.sources.1.field", "Required parameter"),
                ("data.sources.2.did", "Text field only"),
                ("data.sources.2.field", "Required parameter"),
                ("data.sources.4", INVALID),
            ],
        ),
        ({"data": {"sources": {}}}, [("data.sources", "Required parameter")]),
        ({"data": {"sources": "x"}}, [("data.sources", INVALID)]),
        ({"data": {"sources": [TARGET] * 21}}, [("data.sources", "Maximum length 20")]),
        ({"parameters": {"sourceToPredict": TARGET}}, [("parameters.predictIn", "Required parameter")]),
        (
            {"parameters": {"sourceToPredict": TARGET, "predictIn": 604_801, "anomalyDetectionSensitivity": 101}},
            [("parameters.predictIn", "Maximum value 604800"), (SENSITIVITY, "Maximum value 100")],
        ),
        (
            {"parameters": {"sourceToPredict": TARGET, "predictIn": "9", "anomalyDetectionSensitivity": True}},
            [("parameters.predictIn", "Numeric field only"), (SENSITIVITY, "Numeric field only")],
        ),
        (
            {
                "data": {
                    "sources": [
                        {"did": UNKNOWN, "field": "temperature"},
                        {"did": KITCHEN, "field": "no"},
                        {"did": KITCHEN, "field": "text"},
                        {"did": KITCHEN, "field": "samples"},
                        {"did": KITCHEN, "field": "colorRGB"},
                        {"did": KITCHEN, "field": "colorRGB.r"},
                    ]
                }
            },
            [
                ("data.sources.0.did", f'Device "{UNKNOWN}" does not exist'),
                ("data.sources.1.field", 'Field "no" does not exist'),
                ("data.sources.2.field", INVALID),
                ("data.sources.3.field", INVALID),
                ("data.sources.4.field", 'Field "colorRGB" does not exist'),
            ],
        ),
        ({"uid": {"a": 1}, "type": ""}, [("uid", INVALID), ("type", INVALID)]),
        ({"uid": UNKNOWN}, [("uid", "User does not exist.")]),
    ],
)
async def test_all_findings_come_at_once(
    api: httpx.AsyncClient, world: World, members: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    answer = await api.post("/ml/models", json=definition(**members), headers=bearer(ADA_TOKEN))
    assert findings(answer) == expected


async def test_a_model_reads_only_what_its_caller_may_read(api: httpx.AsyncClient, world: World) -> None:
    bobs = {"did": BOBS, "field": "no"}
    answer = await api.post("/ml/models", json=definition(data={"sources": [bobs]}), headers=bearer(ADA_TOKEN))
    assert error_of(answer, 403)["message"] == f"You don't have the right permissions: READ on device {BOBS}"
    for token in (ADA_TOKEN, APPLICATION_TOKEN):
        error_of(await api.post("/ml/models", json=definition(uid=BOB), headers=bearer(token)), 403)
    path = f"/ml/models/{(await made(api))['id']}"
    for method, way in (("GET", ""), ("DELETE", ""), ("POST", "/predict")):
        error_of(await api.request(method, path + way, headers=bearer(BOB_TOKEN)), 403)


async def test_a_ready_model_predicts(api: httpx.AsyncClient, services: Services, world: World) -> None:
    ada, model = bearer(ADA_TOKEN), await made(api)
    path = f"/ml/models/{model['id']}/predict"
    inputs = [{"name": INPUT, "value": 21.5}, {"name": f"{HALL}.state", "value": True}]
    refused = error_of(await api.post(path, json={"inputs": inputs}, headers=ada), 409)
    assert refused["message"] == "Model is not ready: is training"
    await make_ready(services, model)
    for given, value in ((inputs, 22.5), (inputs[:1], 21.5), ([], 0.0)):
        answer = await api.post(path, json={"inputs": given}, headers=ada)
        assert answer.json() == {"data": {"outputs": [{"name": "predicted", "value": value, "confidence": 0.75}]}}
    too_large = [{"name": INPUT, "value": 10**400}]
    assert findings(await api.post(path, json={"inputs": too_large}, headers=ada)) == [("inputs.0.value", INVALID)]
    wrong = [{"name": "x", "value": 1}, {"name": INPUT, "value": "1"}, 5]
    assert findings(await api.post(path, json={"inputs": wrong}, headers=ada)) == [
        ("inputs.0.name", INVALID),
        ("inputs.1.value", INVALID),
        ("inputs.2.name", "Required parameter"),
    ]
    for body, expected in (({}, "Required parameter"), ({"inputs": 5}, INVALID)):
        assert findings(await api.post(path, json=body, headers=ada)) == [("inputs", expected)]
    assert (await api.get(f"/ml/models/{model['id']}", headers=ada)).json()["data"]["status"] == "ready"


async def test_a_predicted_value_has_the_class_of_its_field(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    for field, value, expected in (("intensity", 2.6, 3), ("state", True, True), ("state", 0, False)):
        source = {"did": KITCHEN, "field": field}
        parameters = {"sourceToPredict": source, "predictIn": 60}
        model = await made(api, data={"sources": [source]}, parameters=parameters)
        await make_ready(services, model)
        body = {"inputs": [{"name": f"{KITCHEN}.{field}", "value": value}]}
        answer = await api.post(f"/ml/models/{model['id']}/predict", json=body, headers=bearer(ADA_TOKEN))
        assert answer.json()["data"]["outputs"][0]["value"] is expected or expected == 3
        assert answer.json()["data"]["outputs"][0]["value"] == expected


async def test_a_user_has_at_most_20_models(
    api: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.models.models.MODELS_OF_USER", 1)
    await made(api)
    error_of(await api.post("/ml/models", json=definition(), headers=bearer(ADA_TOKEN)), 409)
