"""Identity and access: users, applications, tokens and permissions (reference 4)."""
