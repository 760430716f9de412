-- The user lets the application manage trials (reference 4.7); only without a type.
ALTER TABLE access_grant ADD COLUMN can_manage_trials INTEGER NOT NULL DEFAULT 0;
-- The application through which the trial was made. NULL: not known, because the trial is older than this column.
ALTER TABLE trial ADD COLUMN made_through INTEGER REFERENCES application;
