-- How many units of its month an organization had used at the end of a day (of today: up to now). Days are UTC.
CREATE TABLE usage_day (
  organization INTEGER NOT NULL, day_ms INTEGER NOT NULL, used INTEGER NOT NULL, PRIMARY KEY (organization, day_ms)
);
CREATE INDEX usage_day_by_day ON usage_day (day_ms);
