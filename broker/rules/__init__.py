"""Rules: conditions on messages and times, and the Actions that follow (reference 12).

The language of rules is pure: it opens nothing, stores nothing and has no clock. `language.compile_rule` makes a `Rule`
of a body, once. The rule is then asked with a `View`, which is what the rule can see at one moment, and with its
`Timers`, which are its running durations. It answers with an `Outcome`, which the caller stores and carries out.
"""
