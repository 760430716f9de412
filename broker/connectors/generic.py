"""The plug-in that ships with the product: for third parties with a JSON interface, described by parameters.

`config/connector.example.toml` has all of them. `items` is a dotted path to a list or to one object; `payload`, `ts`,
`sub_device`, `account` and `device` are JMESPath expressions on each item, as Advanced Manifests have them. Addresses,
headers and bodies are templates (templates.py).
"""

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import urlencode

import msgspec

from broker.connectors.plugin import (
    Account,
    ActionDefinition,
    ConnectorPlugin,
    IncomingRequest,
    LinkedDevice,
    Notification,
    Notified,
    Request,
    Response,
    Result,
    Setting,
)
from broker.connectors.reading import ItemReader, Reading, Unit, id_text
from broker.connectors.templates import check_template, fill_template, fill_url
from broker.nesting import check_nesting

_EVERY_ACTION: Final = "*"
_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class _Call(_Table, frozen=True, kw_only=True):
    """A request. At most one of `json` and `form` is its body."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    url: str
    headers: dict[str, str] = {}
    json: Any = None
    form: dict[str, str] | None = None

    def request(self, values: Mapping[str, Any], tag: str = "") -> Request:
        headers = {name: str(fill_template(value, values)) for name, value in self.headers.items()}
        body = b""
        if self.json is not None:
            headers.setdefault("Content-Type", _JSON)
            body = msgspec.json.encode(fill_template(self.json, values))
        elif self.form is not None:
            headers.setdefault("Content-Type", _FORM)
            body = urlencode(fill_template(self.form, values)).encode()
        return Request(self.method, fill_url(self.url, values), headers, body, tag)

    def check(self, names: frozenset[str]) -> None:
        """Raises ValueError."""
        if self.json is not None and self.form is not None:
            raise ValueError("json and form are both given")
        if not self.url.lower().startswith(("https://", "http://")):
            raise ValueError(f"{self.url!r} is no address of HTTP")
        for template in (self.url, self.headers, self.json, self.form):
            check_template(template, names)


class _Subscribe(_Call, frozen=True, kw_only=True):
    account: str | None = None  # expression: the id of the user's account in the answer


class _Fetch(_Call, frozen=True, kw_only=True):
    items: str = ""
    payload: str
    ts: str | None = None
    ts_unit: Unit = "ms"
    sub_device: str | None = None
    kind: Literal["data", "action"] = "data"


class _Signature(_Table, frozen=True, kw_only=True):
    """An HMAC of the body, in a header."""

    header: str
    secret: str
    algorithm: Literal["sha256", "sha1", "sha512"] = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    prefix: str = ""

    def proves(self, request: IncomingRequest) -> bool:
        digest = hmac.new(self.secret.encode(), request.body, getattr(hashlib, self.algorithm)).digest()
        text = digest.hex() if self.encoding == "hex" else b64encode(digest).decode()
        given = request.headers.get(self.header.lower(), "")
        return hmac.compare_digest(f"{self.prefix}{text}".encode(), given.encode())


class _SecretParameter(_Table, frozen=True, kw_only=True):
    """A secret in the query of the address that the third party calls."""

    name: str
    value: str

    def proves(self, request: IncomingRequest) -> bool:
        return hmac.compare_digest(self.value.encode(), request.query.get(self.name, "").encode())


class _Notification(_Table, frozen=True, kw_only=True):
    """The third party's notifications. Without `payload`, they only name devices, whose data are fetched then."""

    signature: _Signature | None = None
    secret_parameter: _SecretParameter | None = None
    challenge: str | None = None  # the query parameter whose value is the answer to a GET
    items: str = ""
    device: str | None = None
    account: str | None = None
    payload: str | None = None
    ts: str | None = None
    ts_unit: Unit = "ms"
    sub_device: str | None = None
    kind: Literal["data", "action"] = "data"

    def check(self) -> None:
        if (self.signature is None) == (self.secret_parameter is None):
            raise ValueError("notification: needs signature or secret_parameter, and not both")
        if (self.device is None) == (self.account is None):
            raise ValueError("notification: needs device or account, and not both")

    def proven(self, request: IncomingRequest) -> bool:
        proof = self.signature or self.secret_parameter
        return proof is not None and proof.proves(request)


class _Parameters(_Table, frozen=True, kw_only=True):
    subscribe: tuple[_Subscribe, ...] = ()
    unsubscribe: tuple[_Call, ...] = ()
    fetch: tuple[_Fetch, ...] = ()
    notification: _Notification | None = None
    actions: dict[str, _Call] = {}


_NAMES: Final = frozenset({"did", "account", "callback"})


class _Notifier(msgspec.Struct, frozen=True):
    terms: _Notification
    named: ItemReader
    reader: ItemReader | None


class GenericConnector(ConnectorPlugin):
    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        try:
            self._parameters = msgspec.convert(setting.parameters, _Parameters)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        self._check()
        self._readers = [ItemReader(fetch.items, _reading(fetch), fetch.ts_unit) for fetch in self._parameters.fetch]
        self._notifier = _notifier(self._parameters.notification)
        self._account_readers = [
            None if call.account is None else ItemReader("", {"account": call.account})
            for call in self._parameters.subscribe
        ]

    def _check(self) -> None:
        parameters = self._parameters
        for call in (*parameters.subscribe, *parameters.unsubscribe):
            call.check(_NAMES)
        for fetch in parameters.fetch:
            fetch.check(_NAMES | {"since"})
        for action in parameters.actions.values():
            action.check(_NAMES | {"sub_device", "action", "parameters"})
        if parameters.notification is not None:
            parameters.notification.check()

    def subscribe(self, device: LinkedDevice) -> Sequence[Request]:
        values = self._values(device)
        return [call.request(values, str(index)) for index, call in enumerate(self._parameters.subscribe)]

    def subscribe_response(self, device: LinkedDevice, request: Request, response: Response) -> Sequence[Result]:
        if response.status == 409:  # the subscription exists already
            return ()
        super().subscribe_response(device, request, response)
        reader = self._account_readers[int(request.tag)]
        account = None if reader is None else id_text(reader.one(response.json(), "account"))
        return () if account is None else (Account(account),)

    def unsubscribe(self, device: LinkedDevice) -> Sequence[Request]:
        values = self._values(device)
        return [call.request(values) for call in self._parameters.unsubscribe]

    def fetch(self, device: LinkedDevice) -> Sequence[Request]:
        return [
            call.request(self._values(device) | {"since": device.since.get(str(index), 0)}, str(index))
            for index, call in enumerate(self._parameters.fetch)
        ]

    def fetch_response(self, device: LinkedDevice, request: Request, response: Response) -> Sequence[Result]:
        del device
        if not response.ok:
            raise ValueError(f"the third party answered {response.status}")
        index = int(request.tag)
        reader = self._readers[index]
        return list(reader.results(reader.items(response.json()), self._parameters.fetch[index].kind, request.tag))

    def notification(self, request: IncomingRequest) -> Notification:
        notifier = self._notifier
        if notifier is None:
            return Notification(status=404)
        challenge = notifier.terms.challenge
        if request.method == "GET" and challenge is not None and challenge in request.query:
            return Notification(body=request.query[challenge].encode())
        if not notifier.terms.proven(request):
            return Notification(status=403)
        try:
            check_nesting(request.body)
            items = notifier.named.items(msgspec.json.decode(request.body))
            return Notification([self._notified(notifier, item) for item in items])
        except ValueError:  # msgspec's errors are ValueErrors, too
            return Notification(status=400)

    def _notified(self, notifier: _Notifier, item: Any) -> Notified:
        device, account = (id_text(notifier.named.one(item, name)) for name in ("device", "account"))
        if notifier.reader is None:
            return Notified(device, account, fetch=True)
        return Notified(device, account, list(notifier.reader.results([item], notifier.terms.kind)))

    def action(self, device: LinkedDevice, action: ActionDefinition) -> Sequence[Request]:
        actions = self._parameters.actions
        call = actions.get(action.name) or actions.get(_EVERY_ACTION)
        if call is None:
            return ()
        values = {
            "sub_device": device.sub_device,
            "action": action.name,
            "parameters": action.parameters,
        }
        return [call.request(self._values(device) | values)]

    def _values(self, device: LinkedDevice) -> dict[str, Any]:
        return {"did": device.id, "account": device.account, "callback": self.setting.notification_url}


def _reading(terms: _Fetch | _Notification) -> Reading:
    return {"payload": terms.payload or "@", "ts": terms.ts, "sub_device": terms.sub_device}


def _notifier(terms: _Notification | None) -> _Notifier | None:
    if terms is None:
        return None
    named = ItemReader(terms.items, {"device": terms.device, "account": terms.account})
    return _Notifier(terms, named, None if terms.payload is None else ItemReader("", _reading(terms), terms.ts_unit))
