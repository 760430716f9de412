"""The types of the integers that must not be mixed up. At run time each of them is a plain int."""

from typing import Final, NewType

DeviceKey = NewType("DeviceKey", int)
DeviceTypeKey = NewType("DeviceTypeKey", int)
RuleKey = NewType("RuleKey", int)
UserKey = NewType("UserKey", int)
OrganizationKey = NewType("OrganizationKey", int)
ApplicationKey = NewType("ApplicationKey", int)

#: A position in the message log. Only a row that is committed has one.
Position = NewType("Position", int)

#: A row of the log before its commit: `CommitGroup.position` makes its position of it, once the commit has succeeded.
Ticket = NewType("Ticket", int)

#: A moment: milliseconds since the epoch, UTC.
Milliseconds = NewType("Milliseconds", int)

#: As the source of an Action: the external cloud of its destination has reported it.
BY_CLOUD: Final = DeviceKey(0)
