-- Letters outside ASCII are never folded by the engine: addresses as they are written are compared by lower(), which is
-- that of ASCII on both engines, and by their key (config/mail.py: folded_address).
CREATE UNIQUE INDEX user_by_written_email ON user (lower(email));
UPDATE mail SET recipient = lower(recipient);
