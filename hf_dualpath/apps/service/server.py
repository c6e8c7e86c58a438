"""`dualpath serve`: the application on uvicorn, with an orderly end."""

import asyncio
import os
import socket
import sys

import uvicorn

from .access import LOCAL, Access
from .app import create_app
from .limits import Limits
from .service import Service


try:
    import uvloop
except ModuleNotFoundError:  # there is none for Windows; the standard loop takes more time for each message
    uvloop = None


SEND_BUFFER = (
    65_536  # bytes in the kernel for a client that does not read; what is beyond waits with us, and is counted
)
DEAD_AFTER = 60_000  # milliseconds after which a connection that takes nothing is cut


class Server(uvicorn.Server):
    """Finishes sentences before it closes connections."""

    def __init__(self, config: uvicorn.Config, service: Service):
        super().__init__(config)
        self.service = service

    async def startup(self, sockets: list[socket.socket] | None = None):
        await super().startup(sockets)
        host, port = sockets[0].getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        print(f"Serving {', '.join(self.service.workers)} on http://{address} (Ctrl-C stops).", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None):
        await self.service.finish()
        await asyncio.sleep(0.1)  # for the closing frames
        await super().shutdown(sockets)
        await self.service.stop()  # now: a signal that was caught is raised again before `serve` returns


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    if sys.platform == "linux":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise ValueError(f"Port {port} of {host} cannot be used ({error.strerror}): give another --port.") from error
    except (TypeError, UnicodeError) as error:  # what the library says of bytes that are no text
        raise ValueError(f"{host!r} is no address to serve: give another --host.") from error
    return listener


def make_server(service: Service, access: Access) -> Server:
    config = uvicorn.Config(
        create_app(service, access),
        log_level="warning",
        lifespan="off",
        ws="websockets-sansio",
        ws_max_size=service.limits.message_bytes,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=5,
        server_header=False,
    )
    return Server(config, service)


async def run(service: Service, access: Access, listener: socket.socket):
    """Loads the models, then serves until it is asked to stop."""
    await service.start()
    try:
        await make_server(service, access).serve(sockets=[listener])
    finally:
        await service.stop()


def serve(
    models: list[str],
    host: str = "127.0.0.1",
    port: int = 8000,
    origins: tuple[str, ...] = (),
    limits: Limits | None = None,
    **options,
):
    """Serves checkpoints. A token in the environment variable `DUALPATH_TOKEN` is asked of clients."""
    access = Access(os.environ.get("DUALPATH_TOKEN") or None, tuple(origins), host in LOCAL)
    start = asyncio.run if uvloop is None else uvloop.run
    start(run(Service(models, limits, **options), access, bind(host, port)))
