"""Every protocol says why the store cannot be used, in words for everybody; the store's own text is the operator's."""

import json

import pytest

from broker.errors import StorageUnavailable
from protocols.coap.messages import Option
from protocols.coap.requests import refusal_response
from protocols.mqtt.errors import connect_reason
from protocols.refusals import rest_refusal_body
from protocols.websocket.frames import FrameForm, error_frame
from storage import sql
from storage.sql import StoreError

REASONS = {
    sql.StoreFullError: "the disk is full",
    sql.StoreAwayError: "the database does not answer",
    sql.StoreLostError: "the database does not answer",
    sql.StoreDoubtfulError: "the database does not answer; what was sent may be stored",
    sql.StoreBusyError: "the database waits for somebody else",
    sql.StoreDamagedError: None,
    sql.StoreError: None,
}


@pytest.mark.parametrize("kind", REASONS)
def test_the_reason_is_in_each_protocols_form(kind: type[StoreError]) -> None:
    error, reason = StorageUnavailable.of(kind("secret path")), REASONS[kind]
    coap = refusal_response(error, None)
    documents = [rest_refusal_body(error, "1"), coap.body, str(error_frame(error, "1", FrameForm.JSON)).encode()]
    for document in documents:
        found = json.loads(document)["error"]
        assert (found["code"], found["message"], found.get("reason")) == (503, "Service Unavailable", reason)
    assert connect_reason(error).text == (reason or "")
    assert dict(coap.options)[Option.MAX_AGE] == bytes([5])
    assert "secret" not in repr((documents, connect_reason(error)))
