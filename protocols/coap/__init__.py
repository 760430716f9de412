"""CoAP over UDP and DTLS, for constrained devices (compatibility.md section 17)."""
