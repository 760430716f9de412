"""Who may do what: users, applications, tokens and permissions (specification, Authentication)."""
