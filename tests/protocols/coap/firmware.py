"""A firmware image, and the address by which the kitchen's light fetches it by CoAP."""

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from broker.device_management.objects import PACKAGE_URI
from broker.device_management.requests import TaskRequest
from broker.device_management.tasks import Task
from broker.devices.registry import Device
from broker.services import Services
from config.settings import Address
from tests.broker.device_management.devices import FakeSession, register, settle
from tests.factories import KITCHEN

ANYWHERE = Address("127.0.0.1", 5683)


def content_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)  # noqa: S311


@dataclass
class Offered:
    device: Device
    session: FakeSession
    task: Task
    content: bytes

    @property
    def url(self) -> str:
        return str(self.session.values[PACKAGE_URI])

    @property
    def path(self) -> str:
        return urlsplit(self.url).path


async def offer(services: Services, content: bytes, protocol: str = "coap", *, listens: Address = ANYWHERE) -> Offered:
    """Store an image, and give its address to the light."""
    management, light = services.device_management, await services.devices.registry.find(KITCHEN)
    services.core.site.listens_on({**services.core.site.addresses, protocol: listens})
    image = await management.images.add(light.type, chunks_of(content), version="2.0", kind="Application", sha256=None)
    session = FakeSession(light)
    await register(services, session)
    request = TaskRequest("W", "akc.update", 3600, dids=(KITCHEN,), update_id=image.id, protocol=protocol)
    task = await management.tasks.create(light.type, request, scheduled_on=None)
    await settle()
    return Offered(light, session, task, content)


async def chunks_of(content: bytes) -> AsyncIterator[bytes]:
    yield content
