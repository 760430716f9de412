"""The scenes of users: made, changed, listed and activated (reference 12.5).

A scene is checked whenever it is read or activated, so it is never shown as valid when it cannot be activated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import tomli_w
import trio
from msgspec.structs import replace

from broker.accounts.applications import require_application
from broker.accounts.issuance import Issuance
from broker.accounts.permissions import Permission, Permissions, Reach
from broker.accounts.tokens import Caller, TokenKind
from broker.accounts.users import Users, user_in_body
from broker.clock import Clock
from broker.conditional import require_unchanged, tag_of
from broker.devices.registry import Device
from broker.errors import (
    Conflict,
    Finding,
    NotFound,
    PermissionDenied,
    UserNotFound,
    ValidationFailed,
    invalid,
)
from broker.ids import new_id
from broker.nesting import without_nulls
from broker.scenes.actions import NamedObjects, Resolver, SceneAction, check_actions
from broker.scenes.reading import actions_in, decode_findings, encode_findings, read_scene
from broker.scenes.sending import SceneSender
from broker.trace.audit import AuditEvent, note
from config.limits import SCENES_OF_USER
from storage.database import Database
from storage.keys import ApplicationKey, DeviceKey, UserKey
from storage.records import ApplicationRecord, UserRecord
from storage.scenes import SceneRecord
from storage.transaction import Transaction

TOO_MANY_SCENES: Final = f"A user has at most {SCENES_OF_USER} scenes"
_JUDGED_AT_ONCE: Final = 100


class Scene(msgspec.Struct, frozen=True):
    """A scene as it is now. `findings` is empty for a valid scene."""

    record: SceneRecord
    actions: Sequence[SceneAction]
    named: NamedObjects
    findings: tuple[Finding, ...]


@dataclass(slots=True, eq=False, repr=False)
class Scenes:
    _database: Database
    _clock: Clock
    _users: Users
    _permissions: Permissions
    _resolver: Resolver
    _sender: SceneSender

    # Reading

    async def find(self, caller: Caller, scene_id: str, permissions: Sequence[Permission]) -> Scene:
        """A scene, for a caller who acts for its user and has these permissions on the devices that it uses.

        Raises NotFound, PermissionDenied.
        """
        record = await self._database.read(lambda tx: tx.scenes.by_id(scene_id))
        if record is None:
            raise NotFound
        scene = await self._judged(record)
        if refusal := _missing(await self._permissions.reach(caller), scene, permissions):
            raise PermissionDenied(refusal)
        return scene

    async def page(self, caller: Caller, user: UserKey, *, offset: int, count: int) -> tuple[list[Scene], int]:
        """A page of the user's scenes that the caller may read, oldest first, and their number.

        Raises PermissionDenied when the caller does not act for the user.
        """
        await self._permissions.require_user(caller, user)
        reach = await self._permissions.reach(caller)
        found = [await self._judged(one) for one in await self._database.read(lambda tx: tx.scenes.of_user(user))]
        readable = [one for one in found if not _missing(reach, one, (Permission.READ, Permission.WRITE))]
        return readable[offset : offset + count], len(readable)

    async def _judged(self, record: SceneRecord) -> Scene:
        """The scene as it is now: it is marked as invalid when it became so.

        Other tasks have their turn first: a list may have hundreds of scenes, each with a hundred Actions.
        """
        await trio.lowlevel.checkpoint()
        actions = actions_in(record.actions)
        named = await self._resolver.named(actions)
        if record.findings is not None:
            return Scene(record, actions, named, decode_findings(record.findings))
        findings = check_actions(record.user, actions, named)
        if not findings:
            return Scene(record, actions, named, ())
        now_ms, text = self._clock.now_ms(), encode_findings(findings)
        await self._database.write(lambda tx: tx.scenes.invalidate(record, now_ms=now_ms, findings=text))
        return Scene(replace(record, invalidated_on=now_ms, findings=text), actions, named, tuple(findings))

    async def invalidate(self, device: DeviceKey) -> int:
        """Judge the valid scenes whose Actions name a device; return how many became invalid."""
        invalid, after = 0, 0
        while records := await self._database.read(partial(_valid_with_device, device, after)):
            invalid += sum([bool((await self._judged(one)).findings) for one in records])
            after = records[-1].key
        return invalid

    # Changes

    async def create(self, caller: Caller, members: Mapping[str, Any]) -> Scene:
        """Make a scene of the user of the caller's token; with an application token, of the user in `uid`.

        Raises ValidationFailed with all findings; PermissionDenied for a user or a device that the caller may not
        use; Conflict when the user has too many scenes.
        """
        findings: list[Finding] = []
        user = await user_in_body(self._users, self._permissions, caller, members.get("uid"), findings)
        form = read_scene(members, findings, is_new=True)
        if user is None:
            raise ValidationFailed(_sorted(findings))
        named = await self._checked(caller, user, form.actions, findings)
        now_ms = self._clock.now_ms()
        record = SceneRecord(
            key=0,
            id=new_id(),
            user=user,
            application=caller.application or ApplicationKey(0),
            name=form.name or "",
            description=form.description or "",
            actions=form.text or "",
            created_on=now_ms,
            modified_on=now_ms,
        )

        def add(tx: Transaction) -> SceneRecord:
            if tx.accounts.user(user) is None:  # another call has deleted the user
                raise UserNotFound
            require_application(tx, record.application)
            if tx.scenes.count_of_user(user) >= SCENES_OF_USER:
                raise Conflict(TOO_MANY_SCENES)
            added = tx.scenes.add(record, _keys(named))
            _note(tx, AuditEvent.SCENE_CREATED, added, now_ms)
            return added

        return Scene(await self._database.write(add), form.actions, named, ())

    async def change(self, caller: Caller, scene: Scene, members: Mapping[str, Any]) -> Scene:
        """Change the members that are given. New Actions make an invalid scene valid again.

        Raises ValidationFailed with all findings; PermissionDenied for a device that the caller may not use; NotFound
        when another call has deleted the scene.
        """
        findings: list[Finding] = []
        if members.get("uid") not in (None, scene.record.user_id):
            findings.append(Finding("uid", (invalid("the user of a scene does not change"),)))
        form = read_scene(members, findings, is_new=False)
        named = await self._checked(caller, scene.record.user, form.actions, findings)
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> SceneRecord:
            known = tx.scenes.scene(scene.record.key)
            if known is None:
                raise NotFound
            require_unchanged(scene_tag(known))
            changed = replace(
                known,
                name=form.name or known.name,
                description=known.description if form.description is None else form.description,
                modified_on=now_ms,
            )
            if form.text is None:
                tx.scenes.change(changed, None)
            else:
                changed = replace(changed, actions=form.text, invalidated_on=None, findings=None)
                tx.scenes.change(changed, _keys(named))
            _note(tx, AuditEvent.SCENE_CHANGED, changed, now_ms)
            return changed

        return await self._judged(await self._database.write(work))

    async def remove(self, scene: Scene) -> None:
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            tx.scenes.remove(scene.record.key)
            _note(tx, AuditEvent.SCENE_REMOVED, scene.record, now_ms)

        await self._database.write(work)

    def end_all_of(self, issuance: Issuance, user: UserRecord) -> Sequence[str]:
        """Remove a user's scenes in the caller's transaction (`broker/accounts/claims.py: Ender`)."""
        scenes = issuance.tx.scenes.of_user(user.key)
        _end(issuance, scenes)
        return [scene.name for scene in scenes]

    def end_all_of_application(self, issuance: Issuance, application: ApplicationRecord) -> None:
        """Remove the scenes that an application made (`broker/accounts/application_ends.py: Ender`)."""
        _end(issuance, issuance.tx.scenes.of_application(application.key))

    async def activate(self, scene: Scene) -> None:
        """Send the Actions; return when they are durable. The caller's permission is already checked.

        Raises SceneInvalid, DestinationDeviceDisabled, and what a quota refuses with.
        """
        author = f"scene {scene.record.id}"
        await self._sender.send(scene.record.user, scene.actions, scene.named, scene.findings, author=author)

    # Checks

    async def _checked(
        self, caller: Caller, user: UserKey, actions: Sequence[SceneAction], findings: list[Finding]
    ) -> NamedObjects:
        """The devices and types that the Actions name. Of a device that the caller may not use, no more is told.

        Raises ValidationFailed with these findings and those of the Actions; PermissionDenied.
        """
        named = await self._resolver.named(actions)
        reach = await self._permissions.reach(caller)
        refused = await self._refused(caller, reach, user, named)
        judged = [one for one in actions if (one.device or one.every) not in refused]
        findings += check_actions(user, judged, named)
        if findings:
            raise ValidationFailed(_sorted(findings))
        if refused:
            raise PermissionDenied(next(iter(refused.values())))
        return named

    async def _refused(self, caller: Caller, reach: Reach, user: UserKey, named: NamedObjects) -> dict[str, str]:
        """The devices and types that the caller may not use for this user, each with the permission that is missing."""
        refused = {
            id_: f"WRITE on device {id_}"
            for id_, device in named.devices.items()
            if device is not None and not _may(reach, user, device, Permission.WRITE)
        }
        for name, type_ in named.types.items():
            if type_ is None:
                continue
            try:
                await self._permissions.require_granted(caller, user, type_.record, Permission.WRITE)
                await self._permissions.require_type(caller, type_.record, user=user)
            except PermissionDenied as denied:
                refused[name] = denied.missing
        return refused


def _end(issuance: Issuance, scenes: Sequence[SceneRecord]) -> None:
    for scene in scenes:
        issuance.tx.scenes.remove(scene.key)
        _note(issuance.tx, AuditEvent.SCENE_REMOVED, scene, issuance.now_ms)


def _note(tx: Transaction, event: AuditEvent, scene: SceneRecord, now_ms: int) -> None:
    note(tx, event, f"scene {scene.id}", now_ms=now_ms, owner=scene.user_id)


def _valid_with_device(device: DeviceKey, after: int, tx: Transaction) -> list[SceneRecord]:
    return tx.scenes.valid_with_device(device, after=after, limit=_JUDGED_AT_ONCE)


def _may(reach: Reach, user: UserKey, device: Device, permission: Permission) -> bool:
    return device.is_held_by(user) and reach.allows_type(user, device.type.record, permission)


def _missing(reach: Reach, scene: Scene, permissions: Sequence[Permission]) -> str:
    """The permission that the caller lacks for a scene; empty when none is missing.

    Devices that the user has no more do not count: their owner can still read and mend the scene.
    """
    user, named = scene.record.user, scene.named
    if reach.caller.kind is TokenKind.DEVICE or not reach.covers_user(user):
        return "access to this user"
    for permission in permissions:
        for id_, device in named.devices.items():
            if device is not None and device.is_held_by(user) and not _may(reach, user, device, permission):
                return f"{permission.value} on device {id_}"
        for type_ in named.types.values():
            if type_ is not None and not reach.allows_type(user, type_.record, permission):
                return f"{permission.value} on device type {type_.id}"
    return ""


def _keys(named: NamedObjects) -> list[DeviceKey]:
    return [device.key for device in named.devices.values() if device is not None]


def _sorted(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=_place))


def _place(finding: Finding) -> list[tuple[bool, int, str]]:
    """Sorts findings by the members of the body, and Actions by their numbers.

    A member may have any name, also one of digits that `int` does not take. A longer number is a larger one.
    """
    return [(part.isdigit(), len(part) if part.isdigit() else 0, part) for part in finding.field.split(".")]


def scene_tag(scene: SceneRecord) -> str:
    """The tag of the changeable members of a scene."""
    return tag_of(scene.name, scene.description, scene.actions)


def scene_provision_text(record: SceneRecord) -> str:
    """The scene as the table `[[scenes]]` of a provision file (reference 12.5 and 26.2).

    Applied on the same store, it changes nothing; on another one, it creates the scene.
    """
    actions = [_known(action) for action in msgspec.json.decode(record.actions, type=list[dict[str, Any]])]
    entry = {
        "id": record.id,
        "owner": record.user_id,
        "application": record.application_id,
        "name": record.name,
        "description": record.description,
        "actions": actions,
    }
    return tomli_w.dumps({"scenes": [entry]})


def _known(action: dict[str, Any]) -> dict[str, Any]:
    """An Action with the members that count: others that its maker sent may be of any form and depth."""
    ddid = action["ddid"]
    if isinstance(ddid, dict):
        ddid = {name: ddid[name] for name in ("selector", "dtid")}
    parameters = without_nulls(action.get("parameters") or {})
    return {"ddid": ddid, "action": action["action"]} | ({"parameters": parameters} if parameters else {})
