"""Which worker of pytest-xdist runs which tests.

Tests with other programs often wait, the others never do. So half of the workers begin with those that have other
programs and the other half with tests that have none: no processor waits while there are tests of both kinds, and
fewer workers start the daemons and the browser that such tests share.
"""

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

#: Folders whose files share what takes seconds to start: one worker runs all of them.
_IN_ONE_PIECE = ("tests/e2e/accounts/", "tests/e2e/console/")
#: Files of these folders with a daemon of their own: another worker may run them at the same time.
_APART = ("tests/e2e/console/test_every_page.py",)


def has_programs(item: pytest.Item) -> bool:
    """Whether a test starts a daemon, a browser or another program."""
    return "/e2e/" in item.nodeid or item.get_closest_marker("processes") is not None


def programs_first(items: list[pytest.Item]) -> None:
    """Sort what was collected; a file stays in one piece and in its order."""
    files = {item.path for item in items if has_programs(item)}
    items.sort(key=lambda item: item.path not in files)


class FromBothEnds(LoadFileScheduling):
    """Hands out whole files, to every second worker from the end of what was collected."""

    def _split_scope(self, nodeid: str) -> str:
        return next(filter(nodeid.startswith, (*_APART, *_IN_ONE_PIECE)), super()._split_scope(nodeid))

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self.nodes.index(node) % 2:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)
