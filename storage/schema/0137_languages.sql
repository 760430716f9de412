-- The language that a person has chosen for the pages; NULL: as the browser wants it.
ALTER TABLE user ADD COLUMN language TEXT;
