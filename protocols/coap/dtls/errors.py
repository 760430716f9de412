"""The errors of DTLS: of one connection, and of the library."""


class ConnectionOver(Exception):
    """The peer ended or broke the connection, or failed to authenticate."""


class DtlsUnavailable(Exception):
    """GnuTLS is missing, too old or faulty, so that no DTLS listener can be opened."""
