"""CoAP over UDP and DTLS, for constrained devices (reference 17)."""
