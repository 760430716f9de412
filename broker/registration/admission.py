"""Admits a securely registered device only with the client certificate that it registered with (reference 7.1).

Every listener asks `Admission`. A listener that requests no certificates refuses the token of such a device. Other
devices need no certificate; one that they present is not checked.
"""

from hmac import compare_digest

from broker.accounts.tokens import Caller
from broker.devices.registry import Device, Devices
from broker.errors import PermissionDenied
from broker.registration.certificates import BadCertificate, ClientCertificate
from broker.registration.trust import Trust


class Admission:
    def __init__(self, devices: Devices, trust: Trust) -> None:
        self._devices = devices
        self._trust = trust

    async def check_caller(self, caller: Caller, shown: ClientCertificate | None) -> None:
        """Raise PermissionDenied for the token of a device that must present its certificate and has not."""
        if caller.device is not None:
            self.check(await self._devices.get(caller.device), shown)

    def admits_nowait(self, caller: Caller, shown: ClientCertificate | None) -> bool:
        """Whether `check_caller` would raise nothing; False also where the device of the token is not in memory."""
        if caller.device is None:
            return True
        device = self._devices.get_nowait(caller.device)
        if device is None:
            return False
        try:
            self.check(device, shown)
        except PermissionDenied:
            return False
        return True

    def check(self, device: Device, shown: ClientCertificate | None) -> None:
        """Check a device that is loaded already. Raises PermissionDenied."""
        if not device.type.record.rsp:
            return
        registered = device.record.certificate
        if registered is None or shown is None or not compare_digest(shown.leaf, registered):
            raise PermissionDenied(f"the registered client certificate of device {device.id}")
        try:
            self._trust.check(device.type_key, shown)
        except BadCertificate as error:  # it has expired, or the authorities of the type have changed
            raise PermissionDenied(f"a client certificate that is trusted for device {device.id}") from error
