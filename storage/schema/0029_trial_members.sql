-- The application with whose token the user accepted the invitation; null: on the page of the invitation.
ALTER TABLE trial_member ADD COLUMN application INTEGER;
