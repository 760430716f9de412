"""The error that ends a command: one line on stderr and an exit status."""

from collections.abc import Iterator


class CommandError(Exception):
    """The text is the line, without the program's name; `status` is what the process exits with."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(" ".join(message.split()))
        self.status = status


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors within the groups that nurseries raise."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
