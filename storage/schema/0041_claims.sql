-- What a user's address was used for before the user proved to own it (reference 4.2): `content` is JSON, as the page
-- shows it; `former` is the id of the account that was closed.
CREATE TABLE account_claim (
  user INTEGER PRIMARY KEY REFERENCES user ON DELETE CASCADE, former TEXT NOT NULL, claimed_on INTEGER NOT NULL,
  content TEXT NOT NULL
);
-- Applications whose grants of this user ended: they are shown the permission screen once more, whatever they ask for.
-- by_user: the user revoked the application; else a new password ended the grants, and its subscriptions wait.
CREATE TABLE ended_consent (
  user INTEGER NOT NULL REFERENCES user ON DELETE CASCADE, application INTEGER NOT NULL REFERENCES application,
  by_user INTEGER NOT NULL, PRIMARY KEY (user, application)
);
