"""Who is answered: a browser that shows this page, and no page of another site.

A site can have its name resolve to 127.0.0.1 and then ask this server by the name, from the browser
of somebody who has the port forwarded. Such a request has the site's name as its ``Host``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from http import HTTPStatus

from bpfsvc.http.ports import UNSPECIFIED
from bpfsvc.http.server import Request, Response, Route

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_OWN_SITES = ("", "same-origin", "none")
"""Values of ``Sec-Fetch-Site``: of this page, or typed into the browser; old browsers send none."""


def admitting(route: Route, host: str, *, of_page: bool) -> Route:
    """Return a route that refuses other sites.

    ``host``: the address that is listened on. ``of_page``: only this page asks for it; anybody may
    follow a link to what is not of the page.
    """
    is_own = _own_hosts(host)

    def admit(request: Request) -> Response:
        headers = request.headers
        if not is_own(headers.get("host", "")):
            text = "the name of this server is localhost, or its address\n"
            return Response(HTTPStatus.MISDIRECTED_REQUEST, text.encode(), headers=HEADERS)
        if of_page and headers.get("sec-fetch-site", "").lower() not in _OWN_SITES:
            return Response(HTTPStatus.FORBIDDEN, b"asked by another site\n", headers=HEADERS)
        return route(request)

    return admit


def _own_hosts(listening: str) -> Callable[[str], bool]:
    def is_own(text: str) -> bool:
        name = _without_port(text).lower()
        if name == "localhost":
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        # No name resolves to another text: whoever writes an address asks for that address.
        return address.is_loopback or listening in UNSPECIFIED or name == listening

    return is_own


def _without_port(text: str) -> str:
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]
