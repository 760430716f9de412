-- People read what happened to their account (reference 5.6).
CREATE INDEX audit_entry_by_actor ON audit_entry (actor, key);
CREATE INDEX audit_entry_by_object ON audit_entry (object, key);
