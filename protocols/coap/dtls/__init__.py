"""DTLS 1.2 beneath CoAP: the listener, its sessions and the binding of GnuTLS (reference 17)."""
