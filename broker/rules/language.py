"""Compiles bodies of rules and lists of Actions (reference 12.2 and 12.3)."""

from broker.rules.rule import Rule
from broker.rules.world import World


def compile_rule(body: object, world: World, *, key: int) -> Rule:
    """Make a rule of a decoded body `{"if":…,"then":…}`.

    Args:
        body: the member `rule` as it was sent.
        world: what the names in the body mean (`names_in`).
        key: the caller's number for the rule.

    Raises ValidationFailed with all findings; their paths begin with `rule`.
    """
    raise NotImplementedError
