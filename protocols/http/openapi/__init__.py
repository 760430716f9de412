"""The OpenAPI document that the daemon serves, made of the declarations of the calls."""
