"""Why a daemon ends that no longer serves. Commands report it without loading what raises it."""


class FencedError(Exception):
    """Another node serves the store now. The text is one line for the operator."""


class ReplacedError(FencedError):
    """Another daemon with the name of this node serves the store now."""
