"""The error that ends a command: one line on stderr and an exit status."""

from collections.abc import Iterator, Sequence


class CommandError(Exception):
    """The text is the line, without the program's name; `status` is what the process exits with.

    `more` are further lines, of a command that names everything that is wrong.
    """

    def __init__(self, message: str, status: int = 1, *, more: Sequence[str] = ()) -> None:
        super().__init__(" ".join(message.split()))
        self.status = status
        self.lines = (str(self), *(" ".join(line.split()) for line in more))


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors within the groups that nurseries raise."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
