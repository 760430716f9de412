"""The error of a listener, which commands report without loading the listeners."""


class ListenerError(Exception):
    """A listener cannot be opened. The text names it and its address."""
