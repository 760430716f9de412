"""Cloud connectors: devices that live in a third party's cloud, reached through a plug-in (reference 23).

`plugin` is what a plug-in is written against, `generic` the one that ships and is configured entirely by the operator.
"""
