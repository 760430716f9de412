"""Who may do what: users, applications, tokens and permissions (reference 4)."""
