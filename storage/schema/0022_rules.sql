-- `revision` counts the changes that make the rule start anew; its state is that of one revision.
-- `since` is the log position behind which messages count for the rule: the head when it was made or changed.
CREATE TABLE rule (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner INTEGER NOT NULL REFERENCES user,
  application INTEGER NOT NULL REFERENCES application, scope TEXT NOT NULL, name TEXT NOT NULL,
  description TEXT NOT NULL, body TEXT NOT NULL, enabled INTEGER NOT NULL, since INTEGER NOT NULL,
  created_on INTEGER NOT NULL, modified_on INTEGER NOT NULL, invalidated_on INTEGER, findings TEXT NOT NULL,
  stopped_on INTEGER, stop_reason TEXT NOT NULL, revision INTEGER NOT NULL
);
CREATE INDEX rule_by_owner ON rule (owner, key);
-- What the engine knows about a rule at its position in the log. `memory` is JSON of broker/rules.
CREATE TABLE rule_state (
  rule INTEGER PRIMARY KEY, revision INTEGER NOT NULL, triggered INTEGER NOT NULL, last_on INTEGER,
  failing INTEGER NOT NULL, memory TEXT NOT NULL
);
-- The devices and device types that a rule names. `kind` is device or type.
CREATE TABLE rule_use (
  rule INTEGER NOT NULL, kind TEXT NOT NULL, object INTEGER NOT NULL, PRIMARY KEY (rule, kind, object)
);
CREATE INDEX rule_use_by_object ON rule_use (kind, object);
CREATE TABLE rule_problem (
  rule INTEGER NOT NULL, field TEXT NOT NULL, text TEXT NOT NULL, first_on INTEGER NOT NULL, last_on INTEGER NOT NULL,
  times INTEGER NOT NULL, PRIMARY KEY (rule, field, text)
);
-- HTTP requests of rules: those that wait, and finished ones for two days, because rates are counted from them.
CREATE TABLE rule_request (
  key INTEGER PRIMARY KEY, rule INTEGER NOT NULL, owner INTEGER NOT NULL, field TEXT NOT NULL, content TEXT,
  created_on INTEGER NOT NULL
);
CREATE INDEX rule_request_by_owner ON rule_request (owner, created_on);
CREATE INDEX rule_request_waiting ON rule_request (key) WHERE content IS NOT NULL;
