"""The REST API, one blueprint for each of the specification’s endpoint chapters."""
