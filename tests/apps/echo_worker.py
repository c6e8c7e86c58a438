"""A worker without a model, in the place of the real one: a word is written in capitals when the next one is read.

`CRASH` kills the process, `HALF` in the middle of an answer. So everything around the model is tested quickly, and
against a rule that anyone can see.
"""

import os
import sys
from collections import deque

from hf_dualpath.apps.service import worker
from hf_dualpath.inference.events import Read, SentenceEnd, Write
from hf_dualpath.inference.splitting import WordCutter


def sentences(text: str) -> list[str]:
    """How it cuts."""
    found = [[]]
    for word in text.split():
        found[-1].append(word)
        if word.endswith((".", "!", "?")):
            found.append([])
    return [" ".join(sentence) for sentence in found if sentence]


class Pool:
    def __init__(self):
        self.sessions = set()

    def open(self, remembers=True, **dials):
        if dials.get("max_lag") == 0:
            raise ValueError("`max_lag` is at least 1.")
        session = Session(self, dials)
        self.sessions.add(session)
        return session

    def step(self) -> bool:
        return True in [session.advance() for session in self.sessions]

    def take_news(self) -> list:
        return [session for session in self.sessions if session.events or session.done]


class Session:
    def __init__(self, pool, dials):
        self.pool, self.dials = pool, dials
        self.cutter, self.inputs, self.events = WordCutter(), deque(), []
        self.read, self.written, self.sentence, self.target = 0, 0, [], []
        self.finished = self.done = False
        self.start()

    def start(self):
        self.first = self.read, self.written
        self.mark = "!" if self.dials.get("max_lag") == 7 else ""  # a dial that can be seen
        self.sentence, self.target = [], []

    def push(self, text):
        self.inputs.extend(self.cutter.push(text))

    def pause(self):
        self.inputs.extend([*self.cutter.finish(), None])

    def finish(self):
        self.pause()
        self.finished = True

    def set_dials(self, **dials):
        if dials.get("max_lag") == 0:
            raise ValueError("`max_lag` is at least 1.")
        self.inputs.append(dials)

    def take(self):
        events, self.events = self.events, []
        return events

    def close(self):
        self.pool.sessions.discard(self)

    def write(self, word):
        self.target.append(word.upper() + self.mark)
        self.written += 1
        self.events.append(Write(self.target[-1], self.read, self.read, 0.0))

    def end(self):
        if not self.sentence:
            return
        self.write(self.sentence[-1])
        spans = (self.first[0], self.read), (self.first[1], self.written)
        self.events.append(SentenceEnd(" ".join(self.sentence), " ".join(self.target), *spans))
        self.start()

    def advance(self) -> bool:
        """Up to 20 words: quick enough for a test."""
        return True in [self.advance_one() for _ in range(20)]

    def advance_one(self) -> bool:
        if not self.inputs:
            self.done = self.finished
            return False
        word = self.inputs.popleft()
        if word is None:
            self.end()
        elif isinstance(word, dict):
            self.dials = self.dials | word
            if not self.sentence:
                self.start()
        else:
            if word == "CRASH":
                os._exit(1)
            if word == "HALF":
                os.write(OUTPUT, b'[["')
                os._exit(1)
            self.read += 1
            self.events.append(Read(word))
            if self.sentence:
                self.write(self.sentence[-1])
            self.sentence.append(word)
            if word.endswith((".", "!", "?")):
                self.end()
        return True


def load_pools(path, **_):
    if path == "broken":
        raise ValueError("There is no checkpoint in broken.")
    names = ("de-en", "en-de")
    return {name: Pool() for name in names}, dict.fromkeys(names, ["write_threshold", "max_lag"])


if __name__ == "__main__":
    OUTPUT = os.dup(1)
    worker.load_pools = load_pools
    worker.main(sys.argv[1])
