"""Who may connect: the bearer token, and which pages."""

import secrets
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from .protocol import Close, Refusal


LOCAL = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True)
class Access:
    r"""
    Args:
        token (`str`, *optional*): What a client shows as `Authorization: Bearer TOKEN`.
        origins (`tuple[str, ...]`): Pages of other sites that may connect, such as `https://example.org`.
        local_only (`bool`): Whether the service is for this machine only. Then a page that gave its own name this
            machine's address gets nowhere.
    """

    token: str | None = None
    origins: tuple[str, ...] = ()
    local_only: bool = True

    def check_origin(self, headers: Headers):
        """Browsers say which page a connection is from. It must be ours, or one that is allowed."""
        origin, host = headers.get("origin"), headers.get("host", "")
        if origin is None or origin in self.origins:
            return
        try:
            page = urlsplit(origin)
        except ValueError as error:  # no address of a page
            raise Refusal(Close.FORBIDDEN) from error
        if page.netloc != host or (self.local_only and page.hostname not in LOCAL):
            raise Refusal(Close.FORBIDDEN)

    def check_token(self, headers: Headers):
        if self.token is None:
            return
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(shown.strip().encode(), self.token.encode()):
            raise Refusal(Close.UNAUTHORIZED)
