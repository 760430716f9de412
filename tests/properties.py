"""How many examples a property test tries: all in `make test`, a quarter in daily use (`make check`)."""

import hypothesis

_FULL = 100


def register_profiles() -> None:
    """A test that is slow because the machine is busy does not fail."""
    slow = [hypothesis.HealthCheck.too_slow]
    for name, count in (("full", _FULL), ("daily", _FULL // 4)):
        hypothesis.settings.register_profile(
            name, hypothesis.settings.default, max_examples=count, deadline=None, suppress_health_check=slow
        )
    hypothesis.settings.load_profile("full")


def examples(count: int) -> int:
    """What a test asks for that needs more or fewer examples than the others."""
    default = hypothesis.settings.default
    assert default is not None
    return max(1, count * default.max_examples // _FULL)
