"""The service on the web: FastAPI over [`Service`]."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from ... import __version__
from .access import Access
from .connections import converse, follow, say_goodbye
from .feeds import Reader
from .pages import ASSETS, HEADERS, asset, docs_page
from .protocol import Close, Refusal
from .service import Service
from .streams import Stream


DESCRIPTION = """\
Translates text while it arrives.

WebSocket /v1/stream?model=&direction=&write_threshold=...
: Send text as it comes, cut anywhere, or JSON: {"text": "..."}, {"pause": true}, {"dials": {...}}, {"end": true}.
  Each READ and WRITE comes back as a JSON event with a number, seq. To go on after a break, connect with
  stream=ID&after=SEQ within a minute; the first message says how many of yours had arrived.

WebSocket /v1/rooms/NAME
: The same for the speaker of a room. Everybody with the link /rooms/NAME reads along.

WebSocket /v1/rooms/NAME/captions
: The events of a room for a listener, from the last sentences on.
"""


class Text(BaseModel):
    """A whole text."""

    model_config = ConfigDict(extra="forbid")
    text: str
    model: str | None = None
    direction: str | None = Field(None, examples=["de-en"])
    dials: dict[str, float | int | None] = Field(default_factory=dict, examples=[{"write_threshold": 0.5}])
    stream: bool = Field(False, description="answer with server-sent events, each as soon as it is decided")


class Sentence(BaseModel):
    source: str
    target: str


class Translation(BaseModel):
    text: str
    sentences: list[Sentence]


def status_of(refusal: Refusal) -> int:
    """The HTTP status that says the same."""
    others = {Close.SHUTDOWN: 503, Close.TOO_FAST: 429, Close.BROKEN: 500}
    return others.get(refusal.close, refusal.close.code - 4000)


class BodyLimit:
    """ASGI middleware: a request that is too long is refused, and its rest is not read."""

    def __init__(self, app, limit: int):
        self.app, self.limit = app, limit

    async def __call__(self, scope, receive, send):
        read = 0

        async def counted():
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.limit:
                raise HTTPException(413, f"A request has at most {self.limit} bytes.")
            return message

        await self.app(scope, counted if scope["type"] == "http" else receive, send)


def create_app(service: Service, access: Access | None = None) -> FastAPI:
    """The application. Its lifespan starts and stops the service; a server that does so itself turns lifespan off."""
    access = access or Access()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.finish()
        await service.stop()

    app = FastAPI(
        title="Simultaneous translation",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,  # its page would load scripts from elsewhere; ours is below
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    app.add_middleware(BodyLimit, limit=4 * service.limits.text_characters + 10_000)
    if access.origins:
        app.add_middleware(CORSMiddleware, allow_origins=access.origins, allow_headers=["authorization"])

    @app.exception_handler(Refusal)
    async def refuse(request: Request, refusal: Refusal) -> JSONResponse:
        service.metrics.refusals.labels(refusal.close.name.lower()).inc()
        return JSONResponse({"detail": str(refusal)}, status_of(refusal))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        """What is wrong, without what was sent: not all that can be sent can be sent back."""
        service.metrics.refusals.labels(Close.BAD_REQUEST.name.lower()).inc()
        mistakes = [{name: mistake[name] for name in ("type", "loc", "msg")} for mistake in error.errors()]
        return Response(json.dumps({"detail": mistakes}), 422, media_type="application/json")

    # Whole texts

    @app.post("/v1/translate", response_model=Translation)
    async def translate(text: Text, request: Request):
        """Translates a whole text; with `stream` as server-sent events."""
        access.check_origin(request.headers)
        access.check_token(request.headers)
        longest = service.limits.text_characters
        if len(text.text) > longest:
            raise Refusal(Close.TOO_FAST, f"A text has at most {longest} characters: send parts, or open a stream.")
        stream = service.open(text.model, text.direction, text.dials)
        stream.left_at = None
        stream.take_all(text.text)
        if text.stream:
            events = sent_events(service, stream)
            first = await anext(events)  # what is wrong with the request is said before it is answered
            return StreamingResponse(preceded(first, events), media_type="text/event-stream")
        found = Sentences()
        stream.followers.append(found)
        try:
            await found.over.wait()
        finally:
            service.drop(stream)
        if stream.refusal is not None:
            raise stream.refusal
        return Translation(text=" ".join(s.target for s in found.sentences if s.target), sentences=found.sentences)

    # Streams and rooms

    @app.websocket("/v1/stream")
    async def stream(websocket: WebSocket):
        await connect(websocket, service.open)

    @app.websocket("/v1/rooms/{name}")
    async def speak(websocket: WebSocket, name: str):
        await connect(websocket, lambda *choice: service.speak(name, *choice))

    async def connect(websocket: WebSocket, open_stream):
        await websocket.accept()
        try:
            access.check_origin(websocket.headers)
            access.check_token(websocket.headers)
            query = dict(websocket.query_params)
            known, after = query.pop("stream", None), number(query.pop("after", "0"))
            model, direction = query.pop("model", None), query.pop("direction", None)
            found = service.streams.get(known) if known and not service.closing else None
            own = found or open_stream(model, direction, query)
            reader = service.resume(own, after if found else 0)
        except Refusal as refusal:
            return await say_goodbye(websocket, service, refusal)
        opened = {
            "event": "open",
            "stream": own.id,
            "received": own.received,
            "model": own.worker.name,
            "direction": own.direction,
            "characters_per_second": service.limits.characters,
            "waiting_words": service.limits.waiting_words,
        }
        await websocket.send_text(json.dumps(opened))
        await converse(websocket, service, own, reader)

    @app.websocket("/v1/rooms/{name}/captions")
    async def captions(websocket: WebSocket, name: str, stream: str | None = None, after: str = "0"):
        await websocket.accept()
        try:
            access.check_origin(websocket.headers)
            if service.closing:
                raise Refusal(Close.SHUTDOWN)
            room, reader = service.rooms.listen(name, stream, number(after))
        except Refusal as refusal:
            return await say_goodbye(websocket, service, refusal)
        await websocket.send_text(json.dumps({"event": "open", "stream": room.id, "room": name}))
        await follow(websocket, service, reader)

    @app.get("/v1/stream", include_in_schema=False)
    @app.get("/v1/rooms/{name}", include_in_schema=False)
    async def no_page() -> Response:
        return JSONResponse({"detail": "This address speaks WebSocket: see /docs."}, 426, {"upgrade": "websocket"})

    # Pages, and what the service says of itself

    @app.get("/v1/models")
    async def models() -> list[dict]:
        """The models, their directions and the dials of each."""
        return [
            {"name": name, "state": worker.state, "directions": worker.directions}
            for name, worker in service.workers.items()
        ]

    @app.get("/health")
    async def health() -> Response:
        """200 while a model can be used."""
        return JSONResponse(service.health, 200 if service.health["status"] in ("ok", "degraded") else 503)

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(service.measured(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/rooms/{name}", include_in_schema=False)
    async def room_page(name: str) -> Response:
        return Response(asset("room.html"), media_type="text/html", headers=HEADERS)

    @app.get("/assets/{name}", include_in_schema=False)
    async def assets(name: str) -> Response:
        if name not in ASSETS:
            raise Refusal(Close.UNKNOWN, "There is no such file.")
        return Response(asset(name), media_type=ASSETS[name], headers=HEADERS)

    @app.get("/", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()), headers=HEADERS)

    return app


def number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise Refusal(Close.BAD_REQUEST, "'after' is the number of an event.")
    return int(text)


class Sentences:
    """Follows a stream for its sentences."""

    def __init__(self):
        self.sentences: list[Sentence] = []
        self.over = asyncio.Event()

    def add(self, event: dict):
        if event["event"] == "sentence_end":
            self.sentences.append(Sentence(source=event["source"], target=event["target"]))
        elif event["event"] == "end":
            self.over.set()


async def sent_events(service: Service, stream: Stream) -> AsyncIterator[str]:
    """All events of a stream as server-sent events. What goes wrong before the first of them is raised."""
    begun = False
    try:
        with Reader(stream.feed, 0) as reader:
            async for batch in reader.batches():
                begun = True
                yield "".join(f"event: {json.loads(text)['event']}\ndata: {text}\n\n" for text in batch)
            if reader.stopped.done():
                raise reader.stopped.result()
    except Refusal as refusal:
        if not begun:
            raise
        service.metrics.refusals.labels(refusal.close.name.lower()).inc()
        yield f"event: error\ndata: {json.dumps({'event': 'error', 'message': str(refusal)})}\n\n"
    finally:
        service.drop(stream)


async def preceded(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for text in rest:
        yield text
