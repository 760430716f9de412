"""The description of the REST API that the daemon serves, written by hand: one module for each noun of the path table.

`shapes` is the vocabulary, `operation` says what a call is, `document` puts the nouns together.
"""
