"""/scenes: named lists of Actions, sent when a scene is activated (reference 12.5)."""

from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from broker.accounts.permissions import Permission
from broker.accounts.tokens import Caller
from broker.errors import DestinationDeviceDisabled, Finding, ValidationFailed, invalid
from broker.scenes.room import ScenesRoom
from broker.scenes.scenes import TOO_MANY_SCENES, Scene, scene_provision_text, scene_tag
from config.limits import NAME_MAX_CHARACTERS, SCENE_ACTIONS_MAX, SCENE_BODY_BYTES, SCENE_DESCRIPTION_MAX_CHARACTERS
from protocols.http.answers import Answer
from protocols.http.calls import NOTHING, USER, USER_OR_APPLICATION, Accepts, Chapter, RestCall, RestCalls
from protocols.http.conditional import or_present, tagged
from protocols.http.openapi import samples
from protocols.http.openapi.errors import FindingObject
from protocols.http.rest.named import NAMED_USER
from protocols.http.rest.provision_files import provision_answer, provision_answers
from protocols.http.schema import (
    Data,
    Id,
    NumberedPage,
    Paging,
    Shape,
    Timestamp,
    TypeId,
    about,
    absent_if_none,
    one_of,
    text,
    time_ms,
)
from storage.keys import UserKey
from storage.records import UserRecord

_SCENE: Final = "/scenes/{sceneId}"
_USE: Final = (Permission.WRITE,)
_ACTIONS: Final = [
    {"ddid": samples.DID, "action": "setOn", "parameters": {}},
    {"ddid": {"selector": "every", "dtid": samples.TYPE_NAME}, "action": "setOff"},
]
_EXAMPLE: Final[dict[str, Any]] = {
    "id": samples.SCENE,
    "uid": samples.UID,
    "aid": samples.AID,
    "name": "Good night",
    "description": "",
    "actions": _ACTIONS,
    "createdOn": samples.TS,
    "modifiedOn": samples.TS,
}
_TEXT: Final = f"""[[scenes]]
id = "{samples.SCENE}"
owner = "{samples.UID}"
application = "{samples.AID}"
name = "Good night"
description = ""
actions = [
    {{ ddid = "{samples.DID}", action = "setOn" }},
]
"""
_FROM: Final = f"1 to {SCENE_ACTIONS_MAX}, sent in this order"


class _EveryDevice(Shape):
    # Only described: the broker reads the Actions.
    selector: Annotated[str, one_of(("every",))]
    dtid: TypeId


class SceneActionObject(Shape):
    shape = "SceneAction"
    example = _ACTIONS[0]

    ddid: Annotated[
        str,
        about(
            "A device id, or `selector` every and `dtid`: all devices of this type that the user owns",
            type=["string", "object"],
        ),
    ]
    action: Annotated[str, about("As the Manifest calls it; absent with `want`")] | UnsetType = UNSET
    parameters: (
        Annotated[dict[str, Any], about("By name, each an object with `value`; a group has such objects in its value")]
        | UnsetType
    ) = UNSET
    want: (
        Annotated[dict[str, Any], about("Values that are wanted of the device instead, by field, as `parameters`")]
        | UnsetType
    ) = UNSET
    expires_after: Annotated[int, about("Seconds for which they are wanted", minimum=1)] | UnsetType = UNSET


_Name = Annotated[str, about("Of the scene", minLength=1, maxLength=NAME_MAX_CHARACTERS)]
_Description = Annotated[str, text(longest=SCENE_DESCRIPTION_MAX_CHARACTERS)]
_Actions = Annotated[list[SceneActionObject], about(_FROM, minItems=1, maxItems=SCENE_ACTIONS_MAX)]


class _NewScene(Shape, kw_only=True):
    # Only described, as `_SceneChange`: the broker reads the members, so that all findings come at once.
    uid: Annotated[Id, about("Whose scene it is; required with an application token")] | None = None
    name: _Name
    description: _Description = ""
    actions: _Actions


class _SceneChange(Shape, kw_only=True):
    name: _Name | None = None
    description: _Description | None = None
    actions: _Actions | None = None


class _Empty(Shape):
    example = {}


class _SceneError(Shape):
    code: Annotated[int, about("Always 4001")]
    message: str
    errors: list[list[FindingObject]]


class SceneObject(Shape, kw_only=True):
    shape = "Scene"
    example = _EXAMPLE

    id: Id
    uid: Annotated[Id, about("Whose scene it is")]
    aid: Annotated[Id, about("The application that made it")]
    name: _Name
    description: _Description
    actions: Annotated[list[SceneActionObject], about("As they were sent")]
    created_on: Timestamp
    modified_on: Timestamp
    invalidated_on: Annotated[int, time_ms("When it became invalid")] | UnsetType = UNSET
    error: Annotated[_SceneError, about("Why it is invalid")] | UnsetType = UNSET


class _SceneList(Shape):
    scenes: list[SceneObject]


class SceneCalls(RestCalls):
    chapter = Chapter(
        "Scenes",
        "Named lists of Actions: one call sends them all. A scene whose device was deleted or is no longer shared "
        "becomes invalid, and says why; new `actions` mend it. Errors of these calls also have `errorType` and "
        "`errorMessage`.",
    )
    path_names = {"sceneId": (Annotated[Id, about("A scene")], samples.SCENE)}

    def __init__(self, scenes: ScenesRoom) -> None:
        self._scenes = scenes.scenes

    async def _usable(self, caller: Caller, scene_id: str) -> Scene:
        return await self._scenes.find(caller, scene_id, _USE)

    async def _readable(self, caller: Caller, scene_id: str) -> Scene:
        return await self._scenes.find(caller, scene_id, (Permission.READ, Permission.WRITE))

    @RestCall(
        "POST",
        "/scenes",
        tokens=USER_OR_APPLICATION,
        on=NOTHING,
        summary="Make a scene",
        about="Needs WRITE on every device that it names. Everything that is wrong is answered at once.",
        body_limit=SCENE_BODY_BYTES,
        accepts=Accepts(
            {"application/json": _NewScene}, {"uid": samples.UID, "name": "Good night", "actions": _ACTIONS[:1]}
        ),
        refusals={409: TOO_MANY_SCENES},
    )
    async def create(self, caller: Caller, body: dict[str, Any]) -> Data[SceneObject]:
        return _answer(await self._scenes.create(caller, body))

    @RestCall("GET", "/scenes", tokens=USER, on=NOTHING, summary="List the caller's scenes")
    async def own(self, caller: Caller, query: Paging) -> NumberedPage[_SceneList]:
        return await self._page(caller, caller.user or UserKey(0), query)

    @RestCall(
        "GET",
        "/users/{uid}/scenes",
        tokens=USER_OR_APPLICATION,
        on=NAMED_USER,
        summary="List a user's scenes",
        about="Those for whose devices the caller has READ and WRITE, oldest first.",
    )
    async def of_user(self, caller: Caller, user: UserRecord, query: Paging) -> NumberedPage[_SceneList]:
        return await self._page(caller, user.key, query)

    async def _page(self, caller: Caller, user: UserKey, query: Paging) -> NumberedPage[_SceneList]:
        scenes, total = await self._scenes.page(caller, user, offset=query.offset, count=query.count)
        return NumberedPage(_SceneList(list(map(_object, scenes))), total=total, offset=query.offset, count=len(scenes))

    @RestCall("GET", _SCENE, tokens=USER_OR_APPLICATION, on=_readable, summary="Read a scene", is_tagged=True)
    async def read(self, scene: Scene) -> Data[SceneObject]:
        tagged(scene_tag(scene.record))
        return _answer(scene)

    @RestCall(
        "GET",
        f"{_SCENE}/provision",
        tokens=USER_OR_APPLICATION,
        on=_readable,
        summary="Read a scene as a provision file",
        about="The scene as one text, to keep, review and copy: `trunkline provision` takes it.",
        answers=provision_answers(Annotated[str, about("A table `[[scenes]]`")], _TEXT),
    )
    async def text(self, scene: Scene) -> Answer:
        return provision_answer(scene_provision_text(scene.record))

    @RestCall(
        "PUT",
        _SCENE,
        tokens=USER_OR_APPLICATION,
        on=_usable,
        summary="Change a scene",
        about="Members that are left out stay. New `actions` make an invalid scene valid again.",
        body_limit=SCENE_BODY_BYTES,
        accepts=Accepts({"application/json": _SceneChange}, {"name": "Good night", "actions": _ACTIONS[:1]}),
        is_tagged=True,
        is_conditional=True,
    )
    async def change(self, caller: Caller, scene: Scene, body: dict[str, Any]) -> Data[SceneObject]:
        async with or_present(partial(self._present, caller, scene.record.id)):
            scene = await self._scenes.change(caller, scene, body)
        tagged(scene_tag(scene.record))
        return _answer(scene)

    async def _present(self, caller: Caller, scene_id: str) -> SceneObject:
        """The scene as it is now, with its tag. Raises NotFound."""
        scene = await self._scenes.find(caller, scene_id, (Permission.READ,))
        tagged(scene_tag(scene.record))
        return _object(scene)

    @RestCall("DELETE", _SCENE, tokens=USER_OR_APPLICATION, on=_usable, summary="Delete a scene")
    async def remove(self, scene: Scene) -> Data[SceneObject]:
        await self._scenes.remove(scene)
        return _answer(scene)

    @RestCall(
        "POST",
        _SCENE,
        tokens=USER_OR_APPLICATION,
        on=_usable,
        summary="Activate a scene",
        about="Sends its Actions in their order; answers when all are stored. Nothing is sent of an invalid scene, or "
        "when one of its devices is disabled. The scene does not change.",
        body_limit=SCENE_BODY_BYTES,
        accepts=Accepts({"application/json": _Empty}, {}, is_required=False),
        refusals={403: DestinationDeviceDisabled.template},
    )
    async def activate(self, scene: Scene, body: dict[str, Any]) -> Data[SceneObject]:
        if body:
            raise ValidationFailed(tuple(Finding(name, (invalid("an activation has no members"),)) for name in body))
        await self._scenes.activate(scene)
        return _answer(scene)


def _answer(scene: Scene) -> Data[SceneObject]:
    return Data(_object(scene))


def _object(scene: Scene) -> SceneObject:
    record = scene.record
    error = None
    if scene.findings:
        failed = ValidationFailed(scene.findings)
        findings = [FindingObject(one.field, list(one.messages)) for one in scene.findings]
        error = _SceneError(failed.code, str(failed), [findings])
    # Spliced as they are: they were checked when they came.
    actions: Any = Raw(msgspec.json.format(record.actions.encode(), indent=-1))
    return SceneObject(
        id=record.id,
        uid=record.user_id,
        aid=record.application_id,
        name=record.name,
        description=record.description,
        actions=actions,
        created_on=record.created_on,
        modified_on=record.modified_on,
        invalidated_on=absent_if_none(record.invalidated_on),
        error=absent_if_none(error),
    )
