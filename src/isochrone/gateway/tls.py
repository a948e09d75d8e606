"""TLS contexts, towards clients and towards instances, as configured."""

import ssl

from isochrone.config.driver import Tls


def towards_instance(tls: Tls) -> ssl.SSLContext:
    """Checks the instance's certificate, and shows ours where there is one. OSError for files that cannot be read."""
    made = ssl.create_default_context(cafile=tls.ca)
    if not tls.verify:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if tls.client_cert is not None:
        made.load_cert_chain(tls.client_cert, tls.client_key)
    return made


def towards_clients(cert: str, key: str | None, client_ca: str | None) -> ssl.SSLContext:
    """TLS 1.2 or newer, HTTP/1.1 only; with `client_ca` clients must show a certificate. OSError as above."""
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_ca)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    made.load_cert_chain(cert, key)
    if client_ca is not None:
        made.verify_mode = ssl.CERT_REQUIRED
    return made
