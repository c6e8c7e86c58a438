"""What `/metrics` shows, in Prometheus' format."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """One registry for each service, so that several can live in a process."""

    def __init__(self):
        self.registry = CollectorRegistry()
        own = {"registry": self.registry}
        self.streams = Gauge("dualpath_open_streams", "Streams that are open", ["model"], **own)
        self.listeners = Gauge("dualpath_open_listeners", "Readers of rooms", **own)
        self.words_in = Counter("dualpath_words_in", "Source words that arrived", ["model"], **own)
        self.words_out = Counter("dualpath_words_out", "Target words written", ["model"], **own)
        self.queue = Gauge("dualpath_queue_words", "Source words that wait for the model", ["model"], **own)
        self.next_word = Histogram(
            "dualpath_next_word_seconds",
            "From a source word's arrival to the first target word written after it",
            ["model"],
            buckets=SECONDS,
            **own,
        )
        self.delay = Histogram(
            "dualpath_word_delay_seconds",
            "From the arrival of the last source word that a target word waited for, to that target word",
            ["model"],
            buckets=SECONDS,
            **own,
        )
        self.refusals = Counter("dualpath_refusals", "Connections and requests refused or closed", ["reason"], **own)
        self.restarts = Counter(
            "dualpath_worker_restarts", "Times a model's process was started again", ["model"], **own
        )

    def page(self) -> bytes:
        return generate_latest(self.registry)
