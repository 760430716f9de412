"""The table `scenes` of the provision file: named lists of Actions (reference 12.5)."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from broker.errors import Finding, ValidationFailed
from broker.ids import new_id
from broker.provisioning.document import SceneEntry
from broker.provisioning.reading import EntryLocation
from broker.provisioning.report import ChangedKey, compared
from broker.provisioning.run import ProvisioningRun
from broker.scenes.actions import check_actions, named_in
from broker.scenes.reading import SceneForm, read_scene
from broker.scenes.scenes import TOO_MANY_SCENES
from config.limits import SCENES_OF_USER
from storage.keys import UserKey
from storage.records import ApplicationRecord, UserRecord
from storage.scenes import SceneRecord


class SceneTables:
    def __init__(self, run: ProvisioningRun) -> None:
        self._run = run

    def put_scene(self, at: EntryLocation, entry: SceneEntry) -> None:
        """Add or change a scene. Without an id, it stands for the one of its owner and application with its name."""
        run = self._run
        owner, application = run.user_of(at, "owner", entry.owner), run.application_of(at, entry.application)
        form, devices = self._checked(at, entry, owner.key)
        known = self._known(at, entry, owner, application)
        if known is None:
            if run.tx.scenes.count_of_user(owner.key) >= SCENES_OF_USER:
                raise at.refusal("owner", TOO_MANY_SCENES)
            id_ = entry.id or run.generate(at, entry.name, "id", new_id())
            now_ms = run.now_ms
            new = SceneRecord(
                key=0,
                id=id_,
                user=owner.key,
                application=application.key,
                name=entry.name,
                description=entry.description or "",
                actions=form.text or "",
                created_on=now_ms,
                modified_on=now_ms,
            )
            run.tx.scenes.add(new, devices)
            return run.created(at, id_, entry.name)
        wanted = replace(known, name=entry.name, description=entry.description or known.description)
        keys = compared(known, wanted, ("name", "description"))
        if (former := _plain(known.actions)) != (rewritten := _plain(form.text or "")):
            keys.append(ChangedKey("actions", former, rewritten))
        if known.findings is not None:
            keys.append(ChangedKey("valid", False, True))
        if former != rewritten or known.findings is not None:
            wanted = replace(wanted, actions=form.text or "", invalidated_on=None, findings=None)
        if wanted != known:
            run.tx.scenes.change(replace(wanted, modified_on=run.now_ms), devices)
        return run.found(at, known.id, known.name, keys)

    def _checked(self, at: EntryLocation, entry: SceneEntry, owner: UserKey) -> tuple[SceneForm, list[Any]]:
        """The members of the entry, and the keys of the devices that it names. Raises ValidationFailed with all
        findings."""
        findings: list[Finding] = []
        members: Mapping[str, Any] = {
            "name": entry.name,
            "description": entry.description,
            "actions": list(entry.actions),
        }
        form = read_scene(members, findings, is_new=True)
        named = named_in(self._run.tx, form.actions)
        findings += check_actions(owner, form.actions, named)
        if findings:
            raise ValidationFailed(tuple(replace(one, field=f"{at}.{one.field}") for one in findings))
        return form, [device.key for device in named.devices.values() if device is not None]

    def _known(
        self, at: EntryLocation, entry: SceneEntry, owner: UserRecord, application: ApplicationRecord
    ) -> SceneRecord | None:
        if entry.id is None:
            same = [one for one in self._run.tx.scenes.of_user(owner.key) if one.name == entry.name]
            return self._run.only(at, [one for one in same if one.application == application.key])
        known = self._run.tx.scenes.by_id(entry.id)
        if known is not None and known.user != owner.key:
            raise at.refusal("id", "a scene of another user has this id")
        return known


def _plain(actions: str) -> Any:
    """The Actions without what a provision file cannot say: null members."""
    return [
        {name: value for name, value in action.items() if value not in (None, {})}
        for action in msgspec.json.decode(actions)
    ]
