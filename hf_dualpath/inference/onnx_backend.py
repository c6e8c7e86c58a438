"""The engine's arithmetic in ONNX Runtime, and an exported model to stream with. Neither torch nor transformers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from ..model.dials_dualpath import NOWHERE, Dials
from ..model.engine_dualpath import Engine, Limits, TokenStream
from .light_tokenizer import LightTokenizer, load_light_tokenizers


EXPORT = "export.json"
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

    def __init__(self, config: ExportedConfig, sessions: dict[str, onnxruntime.InferenceSession]):
        self.config, self.sessions = config, sessions
        self.names = {name: [output.name for output in session.get_outputs()] for name, session in sessions.items()}
        self.heads = config.decoder_attention_heads if config.is_learned else 1
        self.max_positions = config.max_position_embeddings
        self.reserve(0, 0, 0)

    def run(self, name: str, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(self.names[name], self.sessions[name].run(None, inputs)))

    def reserve(self, slots: int, source_length: int, target_length: int):
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
        self.source_length, self.target_length = source_length, target_length
        for name, (parts, shape) in self.shapes.items():
            new = np.zeros((*parts, slots, *shape), np.float32)
            if slots and name in self.__dict__:
                old = self.__dict__[name]
                common = tuple(slice(min(a, b)) for a, b in zip(old.shape, new.shape))
                new[common] = old[common]
            self.__dict__[name] = new

    def move(self, slot: int, to: int):
        for name, (parts, _) in self.shapes.items():
            memory = self.__dict__[name]
            slots = memory.swapaxes(0, 1) if parts else memory
            slots[to] = slots[slot]

    def rows(self, memory: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """A batch of slots: without a copy where they are the first ones."""
        return memory[: len(rows)] if rows[-1] == len(rows) - 1 else memory[rows]

    def parts(self, name: str, memory: np.ndarray, rows: np.ndarray, length: int | None = None) -> dict:
        """The parts of a memory as inputs of a graph."""
        found = {f"{name}_{index}": self.rows(part, rows) for index, part in enumerate(memory)}
        if length is None:
            return found
        return {key: np.ascontiguousarray(part[:, :, :length]) for key, part in found.items()}

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
        past = self.parts("past", self.read_memory, rows, known)
        results = self.run("encode", tokens=tokens, positions=positions, visible=visible, **past)
        cells = (columns < counts[:, None]).nonzero()
        where, places = rows[cells[0]], starts[cells[0]] + cells[1]
        for name in ("read", "source", "policy") if self.config.is_learned else ("read", "source"):
            memory = self.__dict__[f"{name}_memory"]  # part, slot, head, token, dim
            parts, _, heads, *_ = memory.shape
            memory[:, where, :, places] = results[f"{name}_new"][cells].reshape(len(where), parts, heads, -1)

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
        places = np.arange(self.target_length + 1)  # the last is the token itself
        following = np.minimum(written + 1, self.max_positions - 1)
        results = self.run(
            "write",
            states=self.rows(self.hidden_states, rows),
            **self.parts("source", self.source_memory, rows),
            visible=shown(np.arange(self.source_length) <= stops[:, :, None, None]),
            **self.parts("target", self.target_memory, rows),
            visible_target=shown((places < written[:, None, None, None]) | (places == self.target_length)),
            visible_next=shown((places < following[:, None, None, None]) | (places == self.target_length)),
            positions=following[:, None],
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

    def open_engine(self, slots: int = 1) -> Engine:
        return Engine(OnnxBackend(self.config, self.sessions), slots)

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
        return {entry["direction"]: ExportedConfig(**entry) for entry in json.loads(file.read_text())}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file} is not what `dualpath export` writes: export the model again.") from error


def exported_directions(folder: str | Path) -> list[str]:
    return list(exported_configs(folder))


def load_sessions(folder: Path, threads: int = 1) -> dict[str, onnxruntime.InferenceSession]:
    """The graphs of one direction, ready to run."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return {
        path.stem: onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for path in sorted(folder.glob("*.onnx"))
    }


def load_exported(
    folder: str | Path, direction: str | None = None, threads: int = 1
) -> tuple[OnnxTranslator, LightTokenizer, LightTokenizer]:
    """A direction of a folder that `dualpath export` wrote, by default the first, with its tokenizers."""
    configs = exported_configs(folder)
    names = list(configs)
    direction = {None: names[0], "forward": names[0], "backward": names[-1]}.get(direction, direction)
    if direction not in configs:
        raise ValueError(f"{folder} translates {' and '.join(names)}, not {direction}.")
    sessions = load_sessions(Path(folder) / direction, threads)
    source, target = load_light_tokenizers(folder)
    if direction != names[0]:
        source, target = target, source
    return OnnxTranslator(configs[direction], sessions), source, target
