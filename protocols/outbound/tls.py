"""Trust for outgoing TLS: the certificate authorities of the system and of `outbound.ca_file`."""

import ssl

from config.loading import SettingsError


def client_context(ca_file: str) -> ssl.SSLContext:
    """A client's TLS context. Raises SettingsError when `outbound.ca_file` cannot be used."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"outbound.ca_file: cannot use {ca_file}: {error}") from error
    return context
