"""Subscriptions: messages and Actions that go to callbacks and cloud streams (reference 11).

`subscriptions` has the subscriptions themselves. `reader` follows the message log and makes notifications, `sender`
delivers them, and `log` shows what became of them.
"""
