"""Rules: conditions on messages and times, and the Actions that follow (reference 12).

The code has four floors, a package each:

- `language`: compiles a body and evaluates it. It is pure: it opens nothing, stores nothing and has no clock.
  `compiler.py: compile_rule` makes a `Rule` of a body, once. A caller asks the rule with a `View`, which is the rule's
  sight of one moment, and with its `Timers`, which are its running durations. The answer is an `Outcome`.
- `running`: `engine.py` follows the message log and the time, `index.py` finds the rules that a message concerns,
  `evaluator.py` decides which of them fire, and `loader.py` loads rules into the engine.
- `sending`: carries out what fired: Actions, mails and HTTP requests.
- `explaining`: simulates one rule over the log: why it fired, what it would have sent, and its status.

`rulebook.py` stores rules for their users, and `access.py` decides which caller may see and change them.
"""
