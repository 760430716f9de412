"""Database engines. Code that is special to one engine is in its module."""
