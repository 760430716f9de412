"""Cloud connectors: plug-ins for devices that are reached through a third party's cloud (reference 23).

`plugin` has the interface of plug-ins. `generic` is the plug-in that ships with the product and is configured by the
operator.
"""
