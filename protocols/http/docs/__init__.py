"""/docs: the documents of docs/, the reference and the calls of the OpenAPI document, as pages.

Nothing is loaded from other servers. Scripts add the search and the copy buttons; pages are whole without them.
"""
