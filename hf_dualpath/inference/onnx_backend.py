"""The engine's arithmetic in ONNX Runtime, and an exported model to stream with. Neither torch nor transformers."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


# From 1.29 on the runtime sends what it runs to its maker, from the moment it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime  # noqa: E402

from ..model.dials_dualpath import NOWHERE, Dials  # noqa: E402
from ..model.engine_dualpath import Engine, Limits, TokenStream  # noqa: E402
from .light_tokenizer import LightTokenizer, load_light_tokenizers  # noqa: E402
from .streaming import SimultaneousTranslator  # noqa: E402
from .text import as_file_name  # noqa: E402


EXPORT = "export.json"
SLOW_FUSION = "SkipLayerNormFusion"  # for a batch the fused operator takes twice as long as the two that it joins
FAR = np.float32(-1e9)  # added to the energy of what is not visible


@dataclass(frozen=True)
class ExportedPolicy:
    """What the rest of the package asks of a policy."""

    dials: tuple[str, ...]
    reads_everything: bool = False


@dataclass
class ExportedConfig:
    """What the runtime needs to know of a model, one direction's part of `export.json`."""

    direction: str
    source_language: str
    target_language: str
    policy: str
    wait_k: int
    d_model: int
    encoder_layers: int
    decoder_layers: int
    encoder_attention_heads: int
    decoder_attention_heads: int
    max_position_embeddings: int
    max_length: int
    pad_token_id: int
    decoder_start_token_id: int
    end_tokens: list[int]
    dials: dict

    @property
    def is_learned(self) -> bool:
        return self.policy == "shared_path"

    @property
    def policy_class(self) -> ExportedPolicy:
        return ExportedPolicy(("write_threshold" if self.is_learned else "wait_k", "min_lag", "max_lag"))


def shown(visible: np.ndarray) -> np.ndarray:
    """What is added to energies, so that only what is visible counts."""
    return np.where(visible, np.float32(0), FAR)


class OnnxBackend:
    """Sessions of one direction's graphs, and the caches of its slots."""

    deciding_layers = 1
    room_step = 8  # attention looks at all the room there is

    def __init__(self, config: ExportedConfig, sessions: dict[str, onnxruntime.InferenceSession]):
        self.config, self.sessions = config, sessions
        self.names = {name: [output.name for output in session.get_outputs()] for name, session in sessions.items()}
        self.heads = config.decoder_attention_heads if config.is_learned else 1
        self.max_positions = config.max_position_embeddings
        self.reserve(0, 0, 0)

    def run(self, name: str, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        names = self.names[name]
        return dict(zip(names, self.sessions[name].run(names, inputs)))

    def reserve(self, slots: int, source_length: int, target_length: int, used: int = 0):
        config, heads, width = self.config, self.config.decoder_attention_heads, self.config.d_model
        self.dim = dim = width // heads
        read_heads = config.encoder_attention_heads
        self.shapes = {  # the first is that of each part, the second that of each slot
            "read_memory": ((2 * config.encoder_layers,), (read_heads, source_length, width // read_heads)),
            "source_memory": ((2 * config.decoder_layers,), (heads, source_length, dim)),
            "policy_memory": ((int(config.is_learned),), (heads, source_length, dim)),
            "target_memory": ((2 * config.decoder_layers,), (heads, target_length, dim)),
            "hidden_states": ((), (1, width)),
            "query": ((), (heads if config.is_learned else 0, 1, dim)),
        }
        self.visible_source = shown(np.tri(source_length, dtype=bool))  # row n shows what is visible up to position n
        before = np.tri(target_length + 1, target_length, -1, dtype=bool)
        self.visible_target = shown(np.pad(before, ((0, 0), (0, 1)), constant_values=True))  # before n, and n itself
        self.feeds: dict[int, dict] = {}  # of so many first slots: caches as the inputs of `write`
        for name, (parts, shape) in self.shapes.items():
            old = self.__dict__.get(name)
            if old is not None and old.shape == (*parts, slots, *shape):
                continue
            new = np.zeros((*parts, slots, *shape), np.float32)  # takes memory only where something is written
            if used and old is not None:
                common = [slice(min(a, b)) for a, b in zip(old.shape, new.shape)]
                common[len(parts)] = slice(min(used, common[len(parts)].stop))
                new[tuple(common)] = old[tuple(common)]
            self.__dict__[name] = new

    def move(self, slot: int, to: int):
        for name, (parts, _) in self.shapes.items():
            memory = self.__dict__[name]
            slots = memory.swapaxes(0, 1) if parts else memory
            slots[to] = slots[slot]

    def rows(self, memory: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """A batch of slots: without a copy where they are the first ones."""
        return memory[: len(rows)] if rows[-1] == len(rows) - 1 else memory[rows]

    def known_parts(self, rows: np.ndarray, known: int) -> np.ndarray:
        """What the encoder keeps of the first source tokens, for a batch of slots."""
        first = rows[-1] == len(rows) - 1
        memory = self.read_memory[:, : len(rows)] if first else self.read_memory[:, rows]
        return np.ascontiguousarray(memory[..., :known, :])

    def caches(self, rows: np.ndarray, source_length: int, target_length: int) -> dict:
        """What `write` reads of a batch of slots. Of the first slots it is all, as it lies, and the same until there
        is other room; of others a copy of so many tokens."""
        count, memories = len(rows), (("source", self.source_memory), ("target", self.target_memory))
        is_first = rows[-1] == count - 1
        if is_first and count in self.feeds:
            return self.feeds[count]
        found = {}
        for (name, memory), length in zip(memories, (source_length, target_length)):
            parts = memory[:, :count] if is_first else memory[:, rows, :, :length]
            found |= {f"{name}_{index}": part for index, part in enumerate(parts)}
        if is_first:
            self.feeds[count] = found
        return found

    def begun(self, rows: np.ndarray, positions: np.ndarray, results: dict[str, np.ndarray]):
        """Keeps the state in which slots wait for a decision."""
        heads = self.config.decoder_attention_heads
        self.hidden_states[rows] = results["hidden_states"]
        self.target_memory[:2, rows, :, positions] = results["first_new"].reshape(len(rows), 2, heads, -1)
        if self.config.is_learned:
            self.query[rows] = results["query"].reshape(len(rows), heads, 1, -1)

    def start(self, rows: np.ndarray, tokens: np.ndarray):
        positions = np.zeros(len(rows), np.int64)
        self.begun(rows, positions, self.run("start", tokens=tokens[:, None], positions=positions[:, None]))

    def encode(self, rows: np.ndarray, starts: np.ndarray, counts: np.ndarray, tokens: np.ndarray):
        new, known = tokens.shape[1], int(starts.max())
        columns = np.arange(new)
        positions = np.minimum(starts[:, None] + columns, self.max_positions - 1)
        visible = np.empty((len(rows), 1, new, known + new), np.float32)  # of what is known, and of what is new
        visible[..., :known] = shown(np.arange(known) < starts[:, None])[:, None, None]
        visible[..., known:] = shown(columns <= columns[:, None])
        past = {f"past_{index}": part for index, part in enumerate(self.known_parts(rows, known))}
        results = self.run("encode", tokens=tokens, positions=positions, visible=visible, **past)
        whole = known == 0 and rows[-1] == len(rows) - 1  # what is padding is written over when there are more tokens
        cells = (columns < counts[:, None]).nonzero()
        where, places = rows[cells[0]], starts[cells[0]] + cells[1]
        for name in ("read", "source", "policy") if self.config.is_learned else ("read", "source"):
            memory = self.__dict__[f"{name}_memory"]  # part, slot, head, token, dim
            parts, _, heads, *_, dim = memory.shape
            found = results[f"{name}_new"].reshape(len(rows), new, parts, heads, dim)
            if whole:
                memory[:, : len(rows), :, :new] = found.transpose(2, 0, 3, 1, 4)
            else:
                memory[:, where, :, places] = found[cells]

    def ask(
        self,
        rows: np.ndarray,
        layer: int,
        start: int,
        available: np.ndarray,
        previous: np.ndarray,
        written: np.ndarray,
        dials: Sequence[Dials],
    ) -> np.ndarray:
        if not self.config.is_learned:
            return (written + [its_dials.wait_k or self.config.wait_k for its_dials in dials] - 1)[:, None]
        stop = int(available.max())
        keys = np.ascontiguousarray(self.rows(self.policy_memory[0], rows)[:, :, start:stop])
        p = self.run("ask", query=self.rows(self.query, rows), keys=keys)["probabilities"][:, :, 0]
        threshold = np.array([its_dials.write_threshold for its_dials in dials], np.float32)[:, None, None]
        positions = np.arange(start, stop)
        hits = (p >= threshold) & (positions >= previous[:, :, None])
        return np.where(hits, positions, NOWHERE).min(-1)

    def write(
        self,
        rows: np.ndarray,
        layer: int,
        stops: np.ndarray,
        written: np.ndarray,
        streams: Sequence[TokenStream],
    ) -> np.ndarray:
        following = np.minimum(written + 1, self.max_positions - 1)
        caches = self.caches(rows, int(stops.max()) + 1, int(following.max()))
        source_length, target_length = caches["source_0"].shape[2], caches["target_0"].shape[2]
        all_room = target_length == self.target_memory.shape[3]
        columns = slice(None) if all_room else [*range(target_length), -1]
        results = self.run(
            "write",
            states=self.rows(self.hidden_states, rows),
            visible=self.visible_source[:, :source_length][stops][:, :, None],
            visible_target=self.visible_target[written, None, None][..., columns],  # the token itself comes last
            visible_next=self.visible_target[following, None, None][..., columns],
            positions=following[:, None],
            **caches,
        )
        if self.config.decoder_layers > 1:
            new = results["target_new"].reshape(len(rows), -1, self.config.decoder_attention_heads, self.dim)
            self.target_memory[2:, rows, :, written] = new
        self.begun(rows, following, results)
        return results["tokens"][:, 0]

    def fetch(self, *results: np.ndarray) -> list[np.ndarray]:
        return list(results)


class OnnxTranslator:
    """One direction of an exported model: what [`SimultaneousTranslator`] and batches need of a model."""

    def __init__(self, config: ExportedConfig, sessions: dict[str, onnxruntime.InferenceSession]):
        self.config, self.sessions = config, sessions

    reads_everything = training = can_be_forced = False

    def eval(self) -> "OnnxTranslator":
        return self

    def train(self, mode: bool = True) -> "OnnxTranslator":
        return self

    def open_engine(self, slots: int = 1, room: int | None = None) -> Engine:
        return Engine(OnnxBackend(self.config, self.sessions), slots, room)

    def stream_settings(self, max_new_tokens: int | None = None, **dials) -> dict:
        """What [`Engine.open`] takes; of `generate`'s arguments there are the dials and `max_new_tokens`."""
        known = self.config.policy_class.dials
        for name in dials:
            if name not in known:
                raise ValueError(f"An exported {self.config.policy} model has no `{name}`: it has {', '.join(known)}.")
        given = {name: value for name, value in (self.config.dials | dials).items() if value is not None}
        return {
            "dials": Dials(**given),
            "limits": Limits(frozenset(self.config.end_tokens), self.config.max_length, max_new_tokens),
            "start_token": self.config.decoder_start_token_id,
        }

    def open_stream(self, engine: Engine | None = None, **kwargs) -> TokenStream:
        """A stream, in an engine of its own or in one for many."""
        engine = self.open_engine() if engine is None else engine
        return engine.open(**self.stream_settings(**kwargs))


def exported_configs(folder: str | Path) -> dict[str, ExportedConfig]:
    """Of each direction, the forward one first."""
    file = Path(folder) / EXPORT
    if not file.is_file():
        raise FileNotFoundError(f"There is no {EXPORT} in {folder}: write one with `dualpath export --model ...`.")
    try:
        configs = {str(entry["direction"]): ExportedConfig(**entry) for entry in json.loads(file.read_text())}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{file} is not what `dualpath export` writes: export the model again.") from error
    if not configs:
        raise ValueError(f"{file} names no direction: export the model again.")
    return configs


def exported_directions(folder: str | Path) -> list[str]:
    return list(exported_configs(folder))


def load_sessions(folder: Path, threads: int = 1) -> dict[str, onnxruntime.InferenceSession]:
    """The graphs of one direction, ready to run."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    settings = {"providers": ["CPUExecutionProvider"], "disabled_optimizers": [SLOW_FUSION]}
    return {
        path.stem: onnxruntime.InferenceSession(str(path), options, **settings)
        for path in sorted(folder.glob("*.onnx"))
    }


def check_loading(**loading):
    """Refuses what only the torch backend can do, instead of leaving it out in silence."""
    for name, value in loading.items():
        if value is not None and (name, str(value)) != ("device", "cpu"):
            raise ValueError(f"An exported model has no `{name}`: it runs on the processor, as it was exported.")


def read_one(model: OnnxTranslator, token: int):
    """Reads a source of one token: the runtime says so if there is no such token."""
    engine = model.open_engine()
    stream = model.open_stream(engine, max_new_tokens=1)
    stream.feed([token])
    stream.end()
    while engine.tick():
        pass


def load_exported(
    folder: str | Path, direction: str | None = None, threads: int = 1
) -> tuple[OnnxTranslator, LightTokenizer, LightTokenizer]:
    """A direction of a folder that `dualpath export` wrote, by default the first, with its tokenizers."""
    configs = exported_configs(folder)
    names = list(configs)
    direction = {None: names[0], "forward": names[0], "backward": names[-1]}.get(direction, direction)
    if direction not in configs:
        raise ValueError(f"{folder} translates {' and '.join(names)}, not {direction}.")
    try:
        sessions = load_sessions(Path(folder) / as_file_name(direction), threads)
        source, target = load_light_tokenizers(folder)
        if direction != names[0]:
            source, target = target, source
        loaded = OnnxTranslator(configs[direction], sessions), source, target
        SimultaneousTranslator(*loaded).translate("a word")  # some mistakes show only now
        read_one(loaded[0], max(source.get_vocab().values()))
    except Exception as error:  # onnxruntime and tokenizers raise nothing more special about a broken file
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{folder} is not what `dualpath export` writes: {reason}") from error
    return loaded
