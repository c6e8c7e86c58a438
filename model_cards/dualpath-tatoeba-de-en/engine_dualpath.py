"""The engine of simultaneous decoding: a pool of streams that READ and WRITE together, tick by tick.

One tick writes the next token of every stream that is ready, encodes what has arrived, and asks the policy of every
stream that waits, each as one batch. Streams join and leave at any tick. `generate`, open streams, evaluation, the
demo and the service all run on it, so they cannot disagree.

What is computed is the business of a [`Backend`]; when to READ and when to WRITE is decided here, once. There is no
torch in this file: the light runtime runs the same engine.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .dials_dualpath import NOWHERE, Dials


Action = tuple[int, int] | None  # a WRITE: the token and the source tokens read before it; None: a READ


@dataclass
class Limits:
    """When a translation must end, besides at its own end-of-sentence token.

    Args:
        end_tokens (`frozenset[int]`): What ends a translation.
        max_length (`int`): Tokens of a translation with its start token.
        max_new_tokens (`int`, *optional*):
            The same without it. Unless it is given, no more than twice the tokens read, plus ten, are written.
    """

    end_tokens: frozenset[int]
    max_length: int
    max_new_tokens: int | None = None

    def reached(self, token: int, written: int, read: int) -> bool:
        if token in self.end_tokens:
            return True
        if self.max_new_tokens is not None:
            return written >= self.max_new_tokens
        return written >= self.max_length - 1 or written >= 2 * read + 10


class Backend(Protocol):
    """The arithmetic of the engine: a model and the caches of its slots, in torch or in ONNX Runtime.

    `rows` are slots in ascending order. What `write` and `ask` return may be on its way from a device until `fetch`.
    """

    heads: int  # that decide in a layer
    deciding_layers: int
    max_positions: int
    room_step: int  # tokens by which the room of a short stream grows

    def reserve(self, slots: int, source_length: int, target_length: int, used: int = 0):
        """Makes room for so many slots of such lengths, and keeps what the first `used` hold."""

    def move(self, slot: int, to: int):
        """Copies the state of a slot to another."""

    def start(self, rows: np.ndarray, tokens: np.ndarray):
        """Takes the first target token of each row in, up to where a policy decides."""

    def encode(self, rows: np.ndarray, starts: np.ndarray, counts: np.ndarray, tokens: np.ndarray):
        """Passes new source tokens `(row, token)`, padded on the right, through the encoder."""

    def ask(
        self,
        rows: np.ndarray,
        layer: int,
        start: int,
        available: np.ndarray,
        previous: np.ndarray,
        written: np.ndarray,
        dials: Sequence[Dials],
    ):
        """Where each head of a deciding layer stops, as far as the source tokens from `start` on tell: (row, head)."""

    def write(
        self, rows: np.ndarray, layer: int, stops: np.ndarray, written: np.ndarray, streams: Sequence["TokenStream"]
    ):
        """Goes on from a deciding layer to the next one. From the last it chooses a token of each row, takes it in as
        `start` does, and returns it."""

    def fetch(self, *results) -> list[np.ndarray]:
        """Results as arrays; the only place where the host waits."""


class Engine:
    """A pool of streams over one direction of a model.

    Args:
        backend ([`Backend`]): The model.
        slots (`int`, *optional*, defaults to 1):
            Streams to make room for from the start; there is room for more when they come.
        room (`int`, *optional*): Tokens that the room of a stream grows by at first, by default the backend's step.
    """

    def __init__(self, backend: Backend, slots: int = 1, room: int | None = None):
        self.backend, self.room_step = backend, room or backend.room_step
        self.streams: list[TokenStream] = []  # the stream in slot n
        self.changed: set[TokenStream] = set()  # of which something has become since they were last asked
        self._fed: set[TokenStream] = set()  # with source tokens that wait to be encoded
        self._slots = self._fewest = slots
        self._room = [0, 0, 0]  # of the backend: slots, source and target tokens
        heads, layers = backend.heads, backend.deciding_layers
        self.started = np.zeros(slots, bool)
        self.ended = np.zeros(slots, bool)  # the source has ended
        self.available = np.zeros(slots, np.int64)  # source tokens encoded
        self.examined = np.zeros(slots, np.int64)  # source tokens that the policy has seen for the next target token
        self.written = np.zeros(slots, np.int64)
        self.layer = np.zeros(slots, np.int64)  # which of the deciding layers decides next
        self.low = np.zeros(slots, np.int64)  # earliest source position for the next target token, from min_lag
        self.low_step = np.zeros(slots, np.int64)  # what a token written adds to it
        self.high = np.zeros(slots, np.int64)  # the latest one, from max_lag, or a very large number
        self.stops = np.zeros((slots, layers, heads), np.int64)  # of the token before, or of this one where decided
        self.found = np.full((slots, heads), NOWHERE)  # where the layer's heads stop for the next target token
        self._ready: np.ndarray | None = None  # known until something changes

    # Streams join and leave

    def open(
        self, dials: Dials, limits: Limits, start_token: int, choose: object = None, record: bool = False
    ) -> "TokenStream":
        """A new stream. `choose` is the backend's: how a token is chosen, where it is not simply the best one."""
        slot = len(self.streams)
        if slot == self._slots:
            self._resize(2 * self._slots)
        stream = TokenStream(self, slot, dials, limits, start_token, choose, record)
        self.streams.append(stream)
        self.started[slot] = self.ended[slot] = False
        self.available[slot] = self.examined[slot] = self.written[slot] = self.layer[slot] = 0
        low, high = dials.limits(0)
        self.low[slot], self.low_step[slot] = low, bool(dials.min_lag)
        self.high[slot] = min(high, NOWHERE // 2)  # it grows
        self.stops[slot], self.found[slot] = 0, NOWHERE
        self._ready = None
        return stream

    def close(self, stream: "TokenStream"):
        """Frees a stream's slot, for which the last slot moves; an idle pool gives its memory back."""
        self.changed.discard(stream)
        self._fed.discard(stream)
        if stream.slot is None:
            return
        last = len(self.streams) - 1
        if stream.slot != last:
            for state in self._state():
                state[stream.slot] = state[last]
            if self.started[last] or self.available[last]:
                self.backend.move(last, stream.slot)
            self.streams[stream.slot] = self.streams[last]
            self.streams[stream.slot].slot = stream.slot
        self.streams.pop()
        stream.slot = self._ready = None
        if not self.streams:
            self._room = [0, 0, 0]
            self.backend.reserve(0, 0, 0)
        elif len(self.streams) <= self._slots // 4 and self._slots // 2 >= self._fewest:
            self._resize(self._slots // 2)

    def _state(self) -> list[np.ndarray]:
        one = [self.started, self.ended, self.available, self.examined, self.written, self.layer]
        return [*one, self.low, self.low_step, self.high, self.stops, self.found]

    def _resize(self, slots: int):
        keep = min(len(self.streams), self._slots)
        self._slots = slots
        names = "started ended available examined written layer low low_step high stops found".split()
        for name, state in zip(names, self._state()):
            larger = np.zeros((slots, *state.shape[1:]), state.dtype)
            larger[:keep] = state[:keep]
            setattr(self, name, larger)

    def _reserve(self, source_length: int, target_length: int):
        """Room grows by a step, then by doubling, so that a long stream seldom pays for it."""
        slots, there_source, there_target = self._room
        if slots == self._slots and source_length <= there_source and target_length <= there_target:
            return
        wanted, step = [self._slots], self.room_step
        for needed, there in zip((source_length, target_length), self._room[1:]):
            needed = max(needed, 1)
            larger = -(-needed // step) * step if needed <= 32 else 1 << (needed - 1).bit_length()
            wanted.append(there if needed <= there else min(larger, self.backend.max_positions))
        if wanted != self._room:
            self._room = wanted
            self.backend.reserve(*wanted, len(self.streams))

    # READ or WRITE

    def ready(self) -> np.ndarray:
        """Slots whose next action is a WRITE: each head has stopped, or the lags or the end of the source say so."""
        if self._ready is None:
            n = len(self.streams)
            available = self.available[:n]
            decided = (self.found[:n] < available[:, None]).all(1)
            enough = available > np.where(decided, self.low[:n], self.high[:n])
            asked = self.examined[:n] == available
            self._ready = self.started[:n] & asked & (available > 0) & (self.ended[:n] | enough)
        return self._ready

    def stops_of(self, rows: np.ndarray) -> np.ndarray:
        """Where the heads stop for the tokens that are written now: within the lags, and within the source."""
        latest = np.minimum(self.high[rows], self.available[rows] - 1)
        return np.minimum(np.maximum(self.found[rows], self.low[rows, None]), latest[:, None])

    def by_layer(self, rows: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """Slots by the layer that decides next; mostly there is one layer that does."""
        if not len(rows):
            return []
        if self.backend.deciding_layers == 1:
            return [(0, rows)]
        layers = self.layer[rows]
        return [(layer, rows[layers == layer]) for layer in sorted(set(layers.tolist()))]

    def tick(self) -> bool:
        """One step of all streams; False where there is nothing to do until more source arrives."""
        writes = self._write()
        self._start()
        encoded = self._encode()
        asks = self._ask()
        if not (writes or encoded or asks):
            return False
        self._ready = None
        results = self.backend.fetch(*(result for *_, result in writes), *(result for _, result in asks))
        for (rows, _), found in zip(asks, results[len(writes) :]):
            found, available = np.minimum(self.found[rows], found), self.available[rows]
            self.found[rows] = np.where(found < available[:, None], found, NOWHERE)  # what has not arrived is no stop
            self.examined[rows] = available
        for (streams, reads, _), tokens in zip(writes, results):  # last: a stream that is done leaves its slot
            for stream, read, token in zip(streams[::-1], reads[::-1], tokens.tolist()[::-1]):
                stream.wrote(token, read)  # from the last slot on, so that few move when many are done
        return True

    def _write(self) -> list[tuple[list["TokenStream"], list[int], object]]:
        """Advances all that are ready; the streams whose next token is written, their g, and the tokens."""
        writes = []
        for layer, rows in self.by_layer(self.ready().nonzero()[0]):
            stops, written = self.stops_of(rows), self.written[rows]
            self.stops[rows, layer] = stops
            streams = [self.streams[row] for row in rows.tolist()]
            is_last = layer == self.backend.deciding_layers - 1
            if is_last:
                self._reserve(0, int(written.max()) + 2)
            result = self.backend.write(rows, layer, stops, written, streams)
            if is_last:
                self.written[rows] = written + 1
                self.low[rows] += self.low_step[rows]
                self.high[rows] += 1
                stops = self.stops[rows]
                reads = stops.reshape(len(rows), -1).max(1) + 1
                writes.append((streams, reads.tolist(), result))
                for stream, its_stops in zip(streams, stops):
                    if stream.record:
                        stream.head_stops.append(its_stops)
            self.layer[rows] = next_layer = 0 if is_last else layer + 1
            self.found[rows] = NOWHERE
            self.examined[rows] = self.stops[rows, next_layer].min(1)  # nothing before is looked at again
        return writes

    def _start(self):
        if self.started[: len(self.streams)].all():
            return
        rows = (~self.started[: len(self.streams)]).nonzero()[0]
        self._reserve(0, 1)
        self.backend.start(rows, np.array([self.streams[row].tokens[0] for row in rows]))
        self.started[rows] = True
        self._ready = None

    def _encode(self) -> bool:
        if not self._fed:
            return False
        fed = sorted(self._fed, key=lambda stream: stream.slot)
        self._fed.clear()
        self.changed.update(fed)
        rows, counts = (np.array(numbers) for numbers in zip(*((stream.slot, len(stream.pending)) for stream in fed)))
        starts = self.available[rows]
        self._reserve(int((starts + counts).max()), 0)
        tokens = np.zeros((len(fed), counts.max()), np.int64)
        for row, stream in zip(tokens, fed):
            row[: len(stream.pending)] = stream.pending
            stream.pending.clear()
            self.ended[stream.slot] = stream.source_finished
        self.backend.encode(rows, starts, counts, tokens)
        self.available[rows] = starts + counts
        return True

    def _ask(self) -> list[tuple[np.ndarray, object]]:
        """Asks about the source tokens that a policy has not seen."""
        n = len(self.streams)
        asks, waiting = [], (self.examined[:n] < self.available[:n]).nonzero()[0]
        for layer, rows in self.by_layer(waiting):
            streams = [self.streams[row] for row in rows.tolist()]
            self.changed.update(streams)
            start, dials = int(self.examined[rows].min()), [stream.dials for stream in streams]
            previous, written = self.stops[rows, layer], self.written[rows]
            asks.append((rows, self.backend.ask(rows, layer, start, self.available[rows], previous, written, dials)))
        return asks


class TokenStream:
    """Translation of a source that is still arriving, token by token: one slot of an engine.

    `push` and `finish` yield the actions that become possible, in order and as they are decided: `None` for a READ,
    or the token written and the number of source tokens read before it. The same source gives the same actions
    however it is cut into pushes, and whatever else is in the pool. Who drives a pool calls `feed`, `end` and `take`
    of its streams, and `tick` of the engine.
    """

    def __init__(
        self,
        engine: Engine,
        slot: int,
        dials: Dials,
        limits: Limits,
        start_token: int,
        choose: object = None,
        record: bool = False,
    ):
        self.engine, self.slot = engine, slot  # no slot once it is done
        self.dials, self.limits, self.choose, self.record = dials, limits, choose, record
        self.tokens = [start_token]
        self.path: list[int] = []
        self.head_stops: list[np.ndarray] = []  # (layer, head) for each token, where they are recorded
        self.pending: list[int] = []  # source tokens that wait to be encoded
        self.source_finished = self.done = False
        self.owner: object = None  # whom a pool tells that something has become of it
        self._pushed = self._reported = 0  # source tokens, in all and as READs
        self._actions: list[Action] = []

    def push(self, tokens: Iterable[int]) -> Iterator[Action]:
        """More of the source."""
        self.feed(tokens)
        return self._run()

    def finish(self) -> Iterator[Action]:
        """The source is complete; its end-of-sentence token was the last one pushed."""
        self.end()
        return self._run()

    def _run(self) -> Iterator[Action]:
        yield from self.take()
        while not self.done and self.engine.tick():
            yield from self.take()
        yield from self.take()

    # For who drives the pool

    def feed(self, tokens: Iterable[int]):
        """More of the source, for the next tick."""
        tokens = list(tokens)
        self._pushed += len(tokens)
        limit = self.engine.backend.max_positions
        if self.done:
            return  # the rest is read in silence
        if self._pushed > limit:
            self._pushed -= len(tokens)
            raise ValueError(
                f"The source has {self._pushed + len(tokens)} tokens, more than the model's limit "
                f"`max_position_embeddings` = {limit}."
            )
        self.pending.extend(tokens)
        if tokens:
            self.engine._fed.add(self)

    def end(self):
        """The source is complete, from the next tick on."""
        self.source_finished = True
        if self.slot is not None and not self.pending:
            self.engine.ended[self.slot] = True
            self.engine._ready = None

    @property
    def waits(self) -> bool:
        """Whether the next action is a READ of what has not arrived yet."""
        return not self.pending and not self.engine.ready()[self.slot]

    def take(self) -> list[Action]:
        """The actions decided since this was last asked."""
        actions, self._actions = self._actions, []
        self.engine.changed.discard(self)
        if self.done:
            read = self._pushed
        elif self.waits:
            read = int(self.engine.available[self.slot])  # all that has arrived is read
        else:
            return actions
        actions += [None] * (read - self._reported)
        self._reported = max(read, self._reported)
        return actions

    def close(self):
        """Gives the translation up and frees its memory."""
        self.done = True
        self.engine.close(self)

    def wrote(self, token: int, read: int):
        """The engine has written a token, with so many source tokens read."""
        self.tokens.append(token)
        self.path.append(read)
        if read > self._reported:
            self._actions += [None] * (read - self._reported)
            self._reported = read
        self._actions.append((token, read))
        written = len(self.path)
        if self.limits.reached(token, written, read) or written >= self.engine.backend.max_positions:
            self.close()
        self.engine.changed.add(self)
