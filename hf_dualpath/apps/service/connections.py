"""One WebSocket: a client's messages go into its stream, and events come out, until either is over."""

import asyncio
import time

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from .feeds import Reader
from .protocol import Close, Refusal
from .service import Service
from .streams import Stream


CLOSING_SECONDS = 5.0  # for a client to take the reason why


async def converse(websocket: WebSocket, service: Service, stream: Stream, reader: Reader):
    """A speaker or any other client of a stream."""
    with reader:
        stream.left_at, stream.heard_at = None, time.monotonic()
        ended_by = await first_of(reader.stopped, send_all(websocket, reader), receive_all(websocket, stream))
        mine = stream.feed.readers == {reader}
    if mine:
        stream.left_at = time.monotonic()
    if isinstance(ended_by, Refusal) and ended_by.close not in (Close.TAKEN, Close.SHUTDOWN):
        stream.fail(ended_by)
        service.drop(stream)
    await say_goodbye(websocket, service, ended_by)


async def follow(websocket: WebSocket, service: Service, reader: Reader):
    """A listener."""
    with reader:
        ended_by = await first_of(reader.stopped, send_all(websocket, reader), ignore_all(websocket))
    await say_goodbye(websocket, service, ended_by)


async def send_all(websocket: WebSocket, reader: Reader) -> Close | None:
    try:
        async for text in reader:
            await websocket.send_text(text)
    except WebSocketDisconnect:
        return None
    return Close.DONE


async def receive_all(websocket: WebSocket, stream: Stream) -> Refusal | None:
    """Returns when the client has gone, or why it must go."""
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        try:
            stream.receive(message.get("text") or message.get("bytes") or "")
        except Refusal as refusal:
            return refusal


async def ignore_all(websocket: WebSocket) -> None:
    """A listener has nothing to say."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass


async def first_of(*waiting) -> Close | Refusal | None:
    """What comes first, in this order if several have come; the others are given up."""
    tasks = [asyncio.ensure_future(each) for each in waiting]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.wait(tasks)
    return next(task for task in tasks if task in done).result()


async def say_goodbye(websocket: WebSocket, service: Service, ended_by: Close | Refusal | None):
    """Closes with the reason. A client that takes nothing is not waited for."""
    if ended_by is None or websocket.client_state is not WebSocketState.CONNECTED:
        return
    refusal = ended_by if isinstance(ended_by, Refusal) else Refusal(ended_by)
    if refusal.close is not Close.DONE:
        service.metrics.refusals.labels(refusal.close.name.lower()).inc()
    try:
        await asyncio.wait_for(websocket.close(refusal.close.code, refusal.reason), CLOSING_SECONDS)
    except (asyncio.TimeoutError, WebSocketDisconnect, RuntimeError):  # it has gone meanwhile
        pass
