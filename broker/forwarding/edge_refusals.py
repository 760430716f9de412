"""Why a request of an edge is refused."""

from dataclasses import dataclass

from broker.errors import Conflict, DomainError, TryLater


@dataclass(eq=False)
class OtherStore(Conflict):
    template = (
        "This token is of another store, {reason}. Each store needs a token of its own: trunkline edge add, at the"
        " upstream"
    )


@dataclass(eq=False)
class StoreCopied(Conflict):
    template = (
        "Two copies of this store send, or a backup was restored: the last batch at the upstream is not the last one of"
        " the sender. {reason}"
    )


@dataclass(eq=False)
class ForwardLoop(Conflict):
    template = "Messages would come back to a store that they have come from: {reason}"


@dataclass(eq=False)
class EdgeBusy(TryLater):
    template = "Another request of this store is under way"


class NotNowError(DomainError):
    """The batch is not stored now. The text is a sentence for the sender's operator."""

    status = 503
    template = "{text}"

    def __init__(self, text: str) -> None:
        self.text = text
