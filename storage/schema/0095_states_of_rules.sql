-- The state of a rule that no engine has stored yet says nothing: with several nodes its engine begins where it was made.
-- Rules of a store of before are evaluated up to the common position.
UPDATE rule_state SET memory = '{}' WHERE memory = '';
