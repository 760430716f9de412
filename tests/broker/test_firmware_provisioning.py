"""The table `firmware` of the provision file (reference 26.2)."""

from pathlib import Path
from typing import Any

import pytest

from broker.errors import ValidationFailed
from broker.services import Services
from config.settings import DeviceManagement, Limits, Settings
from storage.firmware import FirmwareImageRecord
from tests.factories import LIGHT_TYPE, World
from tests.rows import each_row
from tests.stored_files import stored_files

ID = "4" * 32


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return Settings(
        state_dir=settings.state_dir,
        limits=Limits(rate_limits="off", quotas="off"),
        device_management=DeviceManagement(image_max_bytes=1000),
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "image.bin"
    path.write_bytes(b"firmware")
    return path


def document(file: Path, **members: Any) -> dict[str, Any]:
    return {"firmware": [{"device_type": LIGHT_TYPE, "version": "1.2.0", "file": str(file)} | members]}


def change(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)


async def images(services: Services) -> list[FirmwareImageRecord]:
    type_ = await services.device_types.catalog.find(LIGHT_TYPE)
    return (await services.device_management.images.page(type_, offset=0, count=10))[0]


async def files(services: Services) -> list[bytes]:
    await services.core.files.sweep()
    return list((await stored_files(services)).values())


async def test_an_image_is_added_once(services: Services, world: World, file: Path) -> None:
    for created, unchanged in ((1, 0), (0, 1)):
        report = await services.provisioning.apply(document(file, id=ID))
        counts = report.tables["firmware"]
        assert (counts.created, counts.unchanged) == (created, unchanged)
    (image,) = await images(services)
    assert (image.id, image.version, image.type, image.size) == (ID, "1.2.0", "Application", 8)
    assert await files(services) == [b"firmware"]


async def test_without_an_id_version_and_type_name_the_image(services: Services, world: World, file: Path) -> None:
    first = await services.provisioning.apply(document(file))
    second = await services.provisioning.apply(document(file))
    assert [one.key for one in first.generated] == ["id"]
    assert (second.tables["firmware"].unchanged, second.generated) == (1, [])


@pytest.mark.both_engines
async def test_what_is_said_of_an_image_may_change_and_its_bytes_may_not(
    services: Services, world: World, file: Path
) -> None:
    await services.provisioning.apply(document(file, id=ID))
    report = await services.provisioning.apply(document(file, id=ID, version="1.2.1", type="Modem"))
    assert report.tables["firmware"].changed == 1
    change(file, b"other")
    with pytest.raises(ValidationFailed) as refused:
        await services.provisioning.apply(document(file, id=ID))
    assert refused.value.findings[0].field == "firmware[0].file"
    assert await files(services) == [b"firmware"]


@pytest.mark.both_engines
async def test_a_trial_run_leaves_nothing(services: Services, world: World, file: Path) -> None:
    report = await services.provisioning.apply(document(file, id=ID), dry_run=True)
    assert report.tables["firmware"].created == 1
    assert (await images(services), await files(services)) == ([], [])


@each_row("content", [None, b"", bytes(1001)])
async def test_files_that_cannot_be_images_are_refused(
    services: Services, world: World, file: Path, content: bytes | None
) -> None:
    change(file, content)
    with pytest.raises(ValidationFailed) as refused:
        await services.provisioning.apply(document(file))
    assert refused.value.findings[0].field == "firmware[0].file"
    assert await files(services) == []
