"""Sends the Actions, mails and HTTP requests of rules that fired (reference 12.2 and 12.4)."""
