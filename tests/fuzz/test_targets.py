"""Every target keeps its rules for its corpus, for changed examples, and for what hypothesis makes up."""

from collections.abc import Callable, Iterator
from itertools import chain, islice

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.__main__ import WATCHED
from tests.fuzz.mutation import mutations, stretches
from tests.fuzz.running import opened
from tests.fuzz.target import CORPUS
from tests.fuzz.targets import TARGETS
from tests.properties import examples

#: Changed examples: of a function, and of services, where one takes a thousand times as long.
_CHANGED, _CHANGED_OF_SERVICES = 400, 20
_STRETCHED, _STRETCHED_OF_SERVICES = 4, 1
_CORPUS_BYTES = 300_000

Run = Callable[[bytes], None]

# Libraries warn of what is refused later, or was never forbidden.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


@pytest.fixture(params=TARGETS)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def run(name: str) -> Iterator[Run]:
    with opened(name, times=5) as found:  # the machine of the tests is slow and busy
        yield found


def test_inputs_keep_the_rules(name: str, run: Run) -> None:
    target = TARGETS[name]
    corpus, is_function = target.corpus(), target.run is not None
    changed = islice(mutations(corpus, target.longest, seed=1), _CHANGED if is_function else _CHANGED_OF_SERVICES)
    stretched = _STRETCHED if is_function else _STRETCHED_OF_SERVICES
    for data in chain(corpus, changed, stretches(corpus, target.longest, 1, stretched)):
        run(data)

    @settings(max_examples=examples(100 if is_function else 10), database=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=200), st.integers(0, 10_000))
    def anything(data: bytes, seed: int) -> None:
        run(data)
        run(next(mutations(corpus, target.longest, seed)))

    anything()


def test_the_table_the_corpus_and_the_watched_modules_name_the_same_targets() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS) == set(WATCHED)
    assert sum(path.stat().st_size for path in CORPUS.glob("*/*")) < _CORPUS_BYTES
