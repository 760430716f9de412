"""Forwarding: to an upstream, and from stores that forward to this one (reference 30)."""
