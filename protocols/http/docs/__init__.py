"""/docs: the OpenAPI document as pages for people. The pages use no script and load nothing from other servers."""
