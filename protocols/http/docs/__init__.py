"""/docs: the OpenAPI document as pages for people, rendered here. They need no script and nothing from elsewhere."""
