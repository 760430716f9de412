"""/operator/backups: the backups that are there, and a new one (reference 27.21)."""

from typing import Annotated

from msgspec import UNSET, UnsetType

from broker.operating.backups import UNDER_WAY, BackupProgress
from broker.operating.room import OperatingRoom
from protocols.http.calls import USER, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.named import ONLY_OPERATORS
from protocols.http.rest.operator import OPERATOR
from protocols.http.schema import Amount, Data, Shape, Timestamp, about, integer, one_of, time_ms


class _Progress(Shape):
    example = {
        "status": "running",
        "startedOn": samples.TS,
        "endedOn": None,
        "done": 4_096,
        "total": 16_384,
        "file": "",
        "problem": "",
    }

    status: Annotated[str, one_of(("running", "done", "failed"))]
    started_on: Timestamp
    ended_on: Annotated[int, time_ms("When it ended")] | None
    done: Annotated[Amount, about("Bytes read so far")]
    total: Annotated[Amount, about("Bytes to read; 0 before it is known")]
    file: str
    problem: str
    node: Annotated[str, about("Of several nodes: the one that makes it")] | UnsetType = UNSET


class _KeptBackup(Shape):
    name: str
    size: Annotated[int, integer("Bytes", lowest=0)]
    made_on: Timestamp
    node: Annotated[str, about("Of several nodes: the one on whose machine it is")] | UnsetType = UNSET


class _Backups(Shape):
    example = {
        "folder": "/var/lib/trunkline/backups",
        "availableBytes": 1_000_000_000,
        "latest": None,
        "backups": [{"name": "trunkline-20260501T120000000000Z.tar.gz", "size": 4_096, "madeOn": samples.TS}],
    }

    folder: Annotated[str, about("On the machine of the service")]
    available_bytes: Annotated[Amount, about("Free on the disk of the folder")]
    latest: Annotated[_Progress, about("The latest since the start; of several nodes, of all of them")] | None
    backups: Annotated[
        list[_KeptBackup], about("Those in the folder, the newest first; of several nodes, in the folder of each")
    ]


class OperatorBackupCalls(RestCalls):
    chapter = OPERATOR

    def __init__(self, operating: OperatingRoom) -> None:
        self._operating = operating

    @RestCall("GET", "/operator/backups", tokens=USER, on=ONLY_OPERATORS, summary="The backups that are there")
    async def backups(self) -> Data[_Backups]:
        kept = await self._operating.backups.kept(self._operating.the_machine())
        latest = await self._operating.backups.latest()
        return Data(
            _Backups(
                str(self._operating.backups.folder),
                await self._operating.the_machine().available(self._operating.backups.folder),
                None if latest is None else _progress(latest),
                [_KeptBackup(one.name, one.size, one.made_on, one.node or UNSET) for one in kept],
            )
        )

    @RestCall(
        "POST",
        "/operator/backups",
        tokens=USER,
        on=ONLY_OPERATORS,
        summary="Begin a backup",
        about="As `trunkline backup`, with the key, into the folder of `console.backup_dir`; it goes on in the "
        "background. The oldest beyond `console.keep_backups` is removed after it.",
        refusals={409: f"{UNDER_WAY}."},
    )
    async def back_up(self) -> Data[_Progress]:
        return Data(_progress(await self._operating.backups.begin(self._operating.the_machine())))


def _progress(one: BackupProgress) -> _Progress:
    about = one.status, one.started_on, one.ended_on, one.done, one.total, one.file, one.problem
    return _Progress(*about, one.node or UNSET)
