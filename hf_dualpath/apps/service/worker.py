"""The process in which a model runs: `python -m hf_dualpath.apps.service.worker SETTINGS`.

One line of JSON is one batch. In come the requests of all streams since the last line, such as
`["push", id, "some words "]`; out go `[id, [events], done]` of all streams that a step of the pools took further. So
the event loop of the service stays free, and a model that dies takes nothing else with it.
"""

import json
import os
import select
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...inference.events import as_dict
from ..cli import quiet_libraries


if TYPE_CHECKING:
    from ...inference.pool import Session, StreamPool


def load_pools(
    path: str, max_sentence_words: int | None = None, slots: int = 1, **loading
) -> tuple[dict[str, "StreamPool"], dict[str, list[str]]]:
    """A pool for each direction of a checkpoint, with room for so many streams, and the dials of each. `loading` is as
    in [`load_directions`]."""
    from ...inference.checkpoints import load_directions
    from ...inference.pool import StreamPool
    from ...inference.streaming import SimultaneousTranslator

    quiet_libraries()
    if loading.get("backend") != "onnx":
        import torch

        torch.set_num_threads(1)  # a tick is many small steps: a second thread costs more than it does
    pools, dials = {}, {}
    for direction, loaded in load_directions(path, **loading).items():
        translator = SimultaneousTranslator(*loaded, max_sentence_words=max_sentence_words)
        pools[direction] = StreamPool(translator, slots=slots)
        dials[direction] = list(translator.model.config.policy_class.dials)
    return pools, dials


class Desk:
    """The sessions of all pools by their streams' ids, and what they are asked for."""

    def __init__(self, pools: dict[str, "StreamPool"]):
        self.pools = pools
        self.sessions: dict[str, Session] = {}
        self.names: dict[Session, str] = {}  # the other way round

    def handle(self, kind: str, stream: str, *arguments) -> list | None:
        """One request. The answer, if there is one, is what was wrong with it."""
        try:
            if kind == "open":
                direction, dials = arguments
                self.sessions[stream] = session = self.pools[direction].open(remembers=False, **dials)
                self.names[session] = stream
            elif stream not in self.sessions:
                return None  # it could not be opened, or is done: what was still on its way is dropped
            elif kind == "push":
                self.sessions[stream].push(*arguments)
            elif kind == "pause":
                self.sessions[stream].pause()
            elif kind == "dials":
                self.sessions[stream].set_dials(**arguments[0])
            elif kind == "end":
                self.sessions[stream].finish()
            elif kind == "close":
                self.close(stream)
        except (TypeError, ValueError) as error:
            wrong = {"dials": arguments[0]} if kind == "dials" else {}
            event = {"event": "refused" if kind == "open" else "error", "message": str(error)}
            return [stream, [event | wrong], False]
        return None

    def step(self) -> bool:
        """One step of all pools; whether there is more to do."""
        return True in [pool.step() for pool in self.pools.values()]

    def answers(self) -> list[list]:
        """What has been decided since last asked."""
        found = []
        for session in [session for pool in self.pools.values() for session in pool.take_news()]:
            stream, done = self.names[session], session.done
            found.append([stream, [as_dict(event) for event in session.take()], done])
            if done:
                self.close(stream)
        return found

    def close(self, stream: str):
        session = self.sessions.pop(stream)
        self.names.pop(session)
        session.close()


class Lines:
    """Batches as they arrive, without waiting longer than there is something else to do."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self.rest = b""
        self.open = True

    def take(self, wait: bool) -> Iterator[list]:
        while self.open and select.select([self.descriptor], [], [], None if wait else 0)[0]:
            wait = False
            block = os.read(self.descriptor, 1 << 20)
            self.open = bool(block)
            *lines, self.rest = (self.rest + block).split(b"\n")
            for line in lines:
                yield json.loads(line)


def main(settings: str):
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer

    def answer(message):
        output.write(json.dumps(message, ensure_ascii=False) + "\n")
        output.flush()

    try:
        pools, dials = load_pools(**json.loads(settings))
    except (ValueError, OSError, ImportError) as error:
        answer({"failed": str(error)})
        return
    answer({"directions": dials})
    desk = Desk(pools)
    lines, busy = Lines(0), False
    while lines.open:
        found = []
        for batch in lines.take(wait=not busy):
            found += filter(None, (desk.handle(*request) for request in batch))
        busy = desk.step()
        found += desk.answers()
        if found:
            answer(found)


if __name__ == "__main__":
    main(sys.argv[1])
