-- Users whose devices were announced to Home Assistant, and the discovery prefix (reference 16.7): when the setting is
-- gone, Home Assistant is told so when it is there.
CREATE TABLE home (
  user INTEGER NOT NULL REFERENCES user ON DELETE CASCADE, prefix TEXT NOT NULL, PRIMARY KEY (user, prefix)
);
