"""The types of the integers that must not be mixed up. At run time each of them is a plain int."""

from typing import NewType

DeviceKey = NewType("DeviceKey", int)
DeviceTypeKey = NewType("DeviceTypeKey", int)
RuleKey = NewType("RuleKey", int)
UserKey = NewType("UserKey", int)
OrganizationKey = NewType("OrganizationKey", int)
ApplicationKey = NewType("ApplicationKey", int)

#: A position in the message log.
Position = NewType("Position", int)

#: A moment: milliseconds since the epoch, UTC.
Milliseconds = NewType("Milliseconds", int)
