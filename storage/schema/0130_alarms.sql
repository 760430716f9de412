-- Alarms of rules (reference 12.12). `device`: the one it is about; 0: none. `is_storm`: it stands for those that were too
-- many. `position`: of the rule when it was raised; `message`: the message that did so. `cause`: JSON, which conditions
-- held. `tell_on`: when somebody is to be told next.
CREATE TABLE alarm (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, rule INTEGER NOT NULL, rule_id TEXT NOT NULL,
  rule_name TEXT NOT NULL, owner INTEGER NOT NULL, application INTEGER NOT NULL, device INTEGER NOT NULL,
  severity TEXT NOT NULL, text TEXT NOT NULL, is_storm INTEGER NOT NULL, raised_on INTEGER NOT NULL,
  last_on INTEGER NOT NULL, count INTEGER NOT NULL, position INTEGER NOT NULL, message INTEGER, cause TEXT NOT NULL,
  acknowledged_on INTEGER, acknowledged_by TEXT NOT NULL, cleared_on INTEGER, cleared_by TEXT NOT NULL,
  tell_on INTEGER, told INTEGER NOT NULL
);
CREATE UNIQUE INDEX alarm_open ON alarm (rule, device, is_storm) WHERE cleared_on IS NULL;
CREATE INDEX alarm_of_owner ON alarm (owner, raised_on, key);
CREATE INDEX alarm_open_of_owner ON alarm (owner, raised_on, key) WHERE cleared_on IS NULL;
CREATE INDEX alarm_of_device ON alarm (device);
CREATE INDEX alarm_of_application ON alarm (application);
CREATE INDEX alarm_due ON alarm (tell_on) WHERE tell_on IS NOT NULL;
CREATE INDEX alarm_cleared ON alarm (cleared_on) WHERE cleared_on IS NOT NULL;
