-- What a node among several said of itself when it renewed its lease last: JSON (broker/cluster/reports.py).
ALTER TABLE lease ADD COLUMN report TEXT;
