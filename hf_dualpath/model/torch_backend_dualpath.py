"""The engine's arithmetic in torch: the layers, one token at a time, over the caches of many streams at once.

It computes what the model's modules do, with fewer and larger operations: for one token the time goes into calls.
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as attend

from .dials_dualpath import Dials
from .engine_dualpath import TokenStream


def best(scores: Tensor) -> Tensor:
    """The best token of each row; numpy finds it ten times faster than torch on CPU."""
    if scores.is_cpu and scores.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(scores.numpy().argmax(-1))
    return scores.argmax(-1)


def choose_best(logits: Tensor, streams: Sequence[TokenStream], pad_token_id: int) -> Tensor:
    """Padding is no word: it is never written."""
    logits[:, pad_token_id] = -torch.inf
    return best(logits)


SMALL = 2**18  # numbers of a matrix that a product reads twice as fast by columns: a copy of it costs little memory
FEW = 4  # rows for which other operations are the fastest ones
WATCHED = 64  # numbers of each weight that tell whether it has changed
NARROWEST = 4  # tokens of a push where shapes are static: a word or two


def is_adapted(name: str, module: nn.Module) -> bool:
    """Whether something stands in the place of a linear map."""
    return name.endswith(("_proj", "fc1", "fc2", "lm_head")) and not isinstance(module, nn.Linear)


@torch.no_grad()
def weight_and_bias(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Of an affine map. What stands in the place of an `nn.Linear`, such as an adapter, is asked what becomes of zeros
    and of each unit vector."""
    if isinstance(module, nn.Linear):
        return module.weight, module.bias
    like, training = next(module.parameters()), module.training
    module.eval()
    units = torch.eye(module.in_features, dtype=like.dtype, device=like.device)
    bias = module(torch.zeros_like(units[:1]))
    weight = module(units) - bias
    module.train(training)
    return weight.t(), bias[0]


class Affine:
    """`states @ weight.t() + bias`. In which order the numbers of a weight are read fastest depends on how many rows
    there are; an order is a copy, made when it is first needed."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, by_columns: bool | None = None):
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.by_columns = weight.numel() <= SMALL if by_columns is None else by_columns
        self.plain = not (weight.is_cpu and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available())
        self.matrix = self.packed = None

    @classmethod
    def of(cls, *projections: nn.Linear) -> "Affine":
        """One map for projections that take the same input."""
        if len(projections) == 1:
            return cls(*weight_and_bias(projections[0]))
        return cls(*(torch.cat(parts) for parts in zip(*map(weight_and_bias, projections))))

    def __call__(self, states: Tensor) -> Tensor:
        rows = states.shape[0]
        if rows <= FEW and self.matrix is not None:
            matrix = self.matrix
        elif self.plain or torch.compiler.is_compiling():
            matrix = self.weight.t()
        elif rows <= FEW:
            matrix = self.matrix = self.weight.t().contiguous() if self.by_columns else self.weight.t()
        else:
            if self.packed is None:
                self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight)
            if missing := -rows % (8 if rows <= 64 else 64):  # a new number of rows costs some ms at first
                states = torch.nn.functional.pad(states, (0, 0, 0, missing))
            return torch.ops.mkldnn._linear_pointwise(states, self.packed, self.bias, "none", [], "")[:rows]
        return states @ matrix if self.bias is None else torch.addmm(self.bias, states, matrix)


def norm(module: nn.LayerNorm) -> tuple:
    """What `layer_norm` takes after its input."""
    return module.normalized_shape, module.weight.detach(), module.bias.detach(), module.eps


def embedded(stack, ids: Tensor, places: Tensor) -> Tensor:
    """Tokens with the embeddings of their places."""
    return torch.add(places, stack.embed_tokens(ids), alpha=stack.embed_scale)


def added(states: Tensor, output: Tensor, project: Affine, normalisation: tuple) -> Tensor:
    """What attention or the feed-forward map found, projected, added and normalised."""
    return torch.layer_norm(project(output).add_(states), *normalisation)


def feed_forward(layer: "LayerWeights", states: Tensor) -> Tensor:
    return added(states, layer.activation(layer.fc1(states)), layer.fc2, layer.final_norm)


class LayerWeights:
    """The weights of a layer as the steps use them, at hand: to look them up in modules takes long."""

    def __init__(self, layer):
        attention = layer.self_attn
        self.self_qkv = Affine.of(attention.q_proj, attention.k_proj, attention.v_proj)
        self.self_out, self.self_norm = Affine.of(attention.out_proj), norm(layer.self_attn_layer_norm)
        self.fc1, self.fc2, self.activation = Affine.of(layer.fc1), Affine.of(layer.fc2), layer.activation_fn.forward
        self.final_norm = norm(layer.final_layer_norm)


class DecoderLayerWeights(LayerWeights):
    def __init__(self, layer):
        super().__init__(layer)
        attention = layer.encoder_attn
        self.source_query = Affine.of(attention.q_proj) if attention.is_soft else None
        self.source_out, self.source_norm = Affine.of(attention.out_proj), norm(layer.encoder_attn_layer_norm)


def lazy_zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. On CPU they take memory only where something is written, so that room costs nothing."""
    if device.type == "cpu" and dtype in (torch.float32, torch.float64):
        return torch.from_numpy(np.zeros(size, np.float32 if dtype == torch.float32 else np.float64))
    return torch.zeros(size, dtype=dtype, device=device)


def attend_once(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None) -> Tensor:
    """Attention of one token a row: `query` (row, head, dim) over (row, head, token, dim). `visible` (row, head, 1,
    token) is added to the energies. On CPU two batched products beat the fused function, but for a few rows."""
    rows, heads, dim = query.shape
    if rows <= FEW or not query.is_cpu or query.dtype not in (torch.float32, torch.float64):
        return attend(query.unsqueeze(2), keys, values, visible)
    query = query.reshape(rows * heads, 1, dim)
    keys, values = keys.flatten(0, 1).transpose(1, 2), values.flatten(0, 1)
    added = query.new_empty(1) if visible is None else visible.expand(-1, heads, -1, -1).flatten(0, 1)
    energies = torch.baddbmm(added, query, keys, beta=0 if visible is None else 1, alpha=dim**-0.5)
    return torch.bmm(energies.softmax(-1), values)


class FusedWeights:
    """All weights as the steps use them. They exist once a model, see `of`."""

    kept: "WeakKeyDictionary[nn.Module, FusedWeights]" = WeakKeyDictionary()  # not in the model, which may be copied

    def __init__(self, model):
        encoder, decoder = model.model.encoder, model.model.decoder
        self.encoder = [LayerWeights(layer) for layer in encoder.layers]
        self.decoder = [DecoderLayerWeights(layer) for layer in decoder.layers]
        attentions = [layer.encoder_attn for layer in decoder.layers]
        names = ("k_proj", "v_proj") if attentions[0].is_soft else ("v_proj",)
        # What all layers keep of a source token.
        self.source = Affine.of(*(attention.get_submodule(name) for attention in attentions for name in names))
        self.output = Affine(*weight_and_bias(model.lm_head), by_columns=True)  # where small models spend their time
        # An adapter is switched on and off without a trace.
        self.made_from = None if any(map(is_adapted, *zip(*model.named_modules()))) else self.versions(model)
        self.watched = [p.detach().flatten()[:: p.numel() // WATCHED + 1] for p in model.parameters()]
        self.seen = torch.cat(self.watched)

    @staticmethod
    def versions(model) -> list[tuple[int, int]]:
        """Change with the weights: another place after `to`, another version after a load or a change in place."""
        return [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in model.parameters()]

    def are_of(self, model) -> bool:
        """Whether the weights are those that these were made from. Fused optimizers, adapters that are merged, and all
        who write to `p.data` leave versions as they were: what they change shows in a few numbers of each weight."""
        return self.made_from == self.versions(model) and torch.equal(torch.cat(self.watched), self.seen)

    @classmethod
    def of(cls, model) -> "FusedWeights":
        """Those of a model; made again when its weights have changed, and each time where adapters add to them."""
        fused = cls.kept.get(model)
        if fused is None or not fused.are_of(model):
            fused = cls.kept[model] = cls(model)
        return fused


class TorchBackend:
    r"""
    A model and the caches of its slots.

    Args:
        model ([`SiMTForConditionalGeneration`]): Of any policy but offline.
        compile (`bool`, *optional*, defaults to `False`):
            Compiles the steps. Shapes then depend on the room for slots and tokens alone, as CUDA graphs need it.
    """

    room_step = 32

    def __init__(self, model, compile: bool = False):
        self.model, self.config = model, model.config
        self.encoder, self.decoder = model.model.encoder, model.model.decoder
        self.policies = [layer.policy for layer in self.decoder.layers if layer.policy is not None]
        self.deciding = [index for index, layer in enumerate(self.decoder.layers) if layer.policy is not None]
        self.deciding_layers = len(self.deciding)
        self.is_learned = self.policies[0].is_learned
        self.heads = self.config.decoder_attention_heads if self.is_learned else 1
        self.head_dim = self.config.d_model // self.config.decoder_attention_heads
        self.is_soft = self.decoder.layers[0].encoder_attn.is_soft
        self.max_positions = self.config.max_position_embeddings
        self.slots, self.static = 0, compile
        if compile:
            self._encode = torch.compile(self._encode, fullgraph=True)
            self._advance = torch.compile(self._advance, fullgraph=True)
            self._begin = torch.compile(self._begin, fullgraph=True)
        self.reserve(0, 0, 0)

    # Room

    def reserve(self, slots: int, source_length: int, target_length: int, used: int = 0):
        if slots and not self.slots:  # nobody is in the middle of a sentence: what has become of the model counts
            self.weights = FusedWeights.of(self.model)
        self.dtype, self.device = self.model.dtype, self.model.device
        kind = {"dtype": self.dtype, "device": self.device}
        config, heads = self.config, self.config.decoder_attention_heads
        encoder_heads, width = config.encoder_attention_heads, config.d_model
        self.shapes = {  # the first is that of each part (keys or values of a layer), the second that of each slot
            "read_memory": ((2 * config.encoder_layers,), (encoder_heads, source_length, width // encoder_heads)),
            "source_memory": (
                ((1 + self.is_soft) * config.decoder_layers,),
                (heads, source_length, self.head_dim),
            ),
            "policy_memory": ((self.deciding_layers * self.is_learned,), (heads, source_length, self.head_dim)),
            "target_memory": ((2 * config.decoder_layers,), (heads, target_length, self.head_dim)),
            "hidden_states": ((), (width,)),
            "query": ((), (heads, self.head_dim) if self.is_learned else (0,)),
        }
        self.slots = slots + (self.static and slots > 0)  # the last one takes what static shapes compute too much
        for name, (parts, shape) in self.shapes.items():
            old = self.__dict__.get(name)
            size = (*parts, self.slots, *shape)
            if old is not None and (old.shape, old.dtype, old.device) == (size, *kind.values()):
                continue
            new = lazy_zeros(size, **kind)
            if old is not None and used:
                common = [slice(min(a, b)) for a, b in zip(old.shape, new.shape)]
                common[len(parts)] = slice(min(used, common[len(parts)].stop))
                new[tuple(common)] = old[tuple(common)]
            self.__dict__[name] = new
        # Row n of this table is what a head sees that stops at n: added to energies, or with hard alignment weights.
        positions = torch.arange(source_length, device=self.device)
        seen = positions <= positions[:, None] if self.is_soft else positions == positions[:, None]
        self.seen = seen.to(self.dtype).log_() if self.is_soft else seen.to(self.dtype)

    def move(self, slot: int, to: int):
        for name, (parts, _) in self.shapes.items():
            memory = self.__dict__[name]
            slots = memory.transpose(0, 1) if parts else memory
            slots[to] = slots[slot]

    def _rows(self, rows: np.ndarray) -> slice | Tensor:
        """How a batch of slots is addressed: without a copy where they are the first ones, which they mostly are."""
        if self.static:
            rows = self._padded(rows, self.slots - 1)
        elif rows[-1] == len(rows) - 1:
            return slice(0, len(rows))
        return torch.from_numpy(rows).to(self.device)

    def _padded(self, values: np.ndarray, fill: int = 0) -> np.ndarray:
        """Static shapes: one row for each slot."""
        if not self.static:
            return values
        padding = np.full((self.slots - len(values), *values.shape[1:]), fill, values.dtype)
        return np.concatenate([values, padding])

    @staticmethod
    def _widened(tokens: np.ndarray) -> np.ndarray:
        """Static shapes: few widths for pushes of all lengths."""
        width = max(NARROWEST, 1 << (tokens.shape[1] - 1).bit_length())
        return np.pad(tokens, ((0, 0), (0, width - tokens.shape[1])))

    def _positions(self, values: np.ndarray) -> int | Tensor:
        """Positions of one token a row; one number where they are all the same."""
        first = int(values[0])
        if not self.static and (values == first).all():
            return first
        return torch.from_numpy(self._padded(values)).to(self.device)

    # Reading

    @torch.inference_mode()
    def encode(self, rows: np.ndarray, starts: np.ndarray, counts: np.ndarray, tokens: np.ndarray):
        if self.static:
            tokens = self._widened(tokens)
        where, columns = self._rows(rows), np.arange(tokens.shape[1])
        positions = self._padded(np.minimum(starts[:, None] + columns, self.max_positions - 1))
        if not self.static and (starts == 0).all():  # whole sources, or the beginning of some
            places = None
        else:
            cells = (columns < counts[:, None]).nonzero()
            fill = (rows[cells[0]], starts[cells[0]] + cells[1])
            if self.static:  # each cell once, those that are padding into the slot that is nobody's
                full = np.full((self.slots, len(columns)), self.slots - 1), np.zeros((self.slots, len(columns)), int)
                for cell, value in zip(full, fill):
                    cell[cells] = value
                fill, cells = (cell.ravel() for cell in full), (slice(None),)
            places = tuple(torch.from_numpy(np.ascontiguousarray(part)).to(self.device) for part in fill)
            cells = tuple(
                part if isinstance(part, slice) else torch.from_numpy(part).to(self.device) for part in cells
            )
            places = (places, cells)
        length = self.read_memory.shape[3] if self.static else int((starts + counts).max())
        ids, positions = (torch.from_numpy(part).to(self.device) for part in (self._padded(tokens), positions))
        self._encode(where, ids, positions, places, length)

    def _encode(self, where, ids: Tensor, positions: Tensor, places: tuple | None, length: int):
        encoder = self.encoder
        states = embedded(encoder, ids, encoder.embed_positions.weight[positions])
        visible = None  # whole sources: each token sees those before it
        if places is not None:
            visible = torch.arange(length, device=self.device) <= positions[:, None, :, None]  # row, 1, new, source
        heads, rows, columns = self.config.encoder_attention_heads, *ids.shape
        states = states.flatten(0, 1)
        for index, layer in enumerate(self.weights.encoder):
            projected = layer.self_qkv(states).view(rows, columns, 3, heads, -1)
            query, new = projected[:, :, 0], projected[:, :, 1:]  # row, token, which, head, dim
            memory = self.read_memory[2 * index : 2 * index + 2]
            self._put_tokens(memory, where, places, new)
            if visible is None:
                key, value = new.permute(2, 0, 3, 1, 4)
            else:
                key, value = self._select(memory.narrow(3, 0, length), where)
            output = attend(query.transpose(1, 2), key, value, visible, is_causal=visible is None)
            states = added(states, output.transpose(1, 2).reshape(states.shape), layer.self_out, layer.self_norm)
            states = feed_forward(layer, states)
        states = states.view(rows, columns, -1)
        source = self.weights.source(states.flatten(0, 1))
        source = source.view(rows, columns, -1, self.config.decoder_attention_heads, self.head_dim)
        self._put_tokens(self.source_memory, where, places, source)
        if self.is_learned:
            keys = torch.stack([policy.key(states) for policy in self.policies], 1)  # row, layer, head, token, dim
            self._put_tokens(self.policy_memory, where, places, keys.permute(0, 3, 1, 2, 4))

    def _put_tokens(self, memory: Tensor, where, places: tuple | None, new: Tensor):
        """Stores what is kept of new tokens: row, token, part, head, dim."""
        if places is None:
            memory[:, where, :, : new.shape[1]] = new.permute(2, 0, 3, 1, 4)
        else:
            (rows, positions), cells = places
            memory[:, rows, :, positions] = new[cells] if len(cells) > 1 else new.flatten(0, 1)

    # Deciding

    @torch.inference_mode()
    def ask(
        self,
        rows: np.ndarray,
        layer: int,
        start: int,
        available: np.ndarray,
        previous: np.ndarray,
        written: np.ndarray,
        dials: Sequence[Dials],
    ) -> Tensor:
        query, key, count = None, None, len(rows)
        if self.static:  # all slots and all room; the engine takes no stop among what has not arrived
            start, dials = 0, [*dials, *[dials[0]] * (self.slots - count)]
        if self.is_learned:
            where, end = self._rows(rows), None if self.static else int(available.max())
            query = self.query[where, :, None]
            key = self.policy_memory[layer, where, :, start:end]
        previous = torch.from_numpy(self._padded(previous)[:, :, None]).to(self.device)
        written = self._padded(written).tolist()
        return self.policies[layer].live_stop(query, key, start, previous, written, dials).squeeze(-1)[:count]

    # Writing

    @torch.inference_mode()
    def start(self, rows: np.ndarray, tokens: np.ndarray):
        ids = torch.from_numpy(self._padded(tokens)).to(self.device)
        self._begin(self._rows(rows), ids, self._positions(np.zeros_like(rows)), self._target_length(1))

    @torch.inference_mode()
    def write(
        self,
        rows: np.ndarray,
        layer: int,
        stops: np.ndarray,
        written: np.ndarray,
        streams: Sequence[TokenStream],
    ) -> Tensor | None:
        where = self._rows(rows)
        length = self.source_memory.shape[3] if self.static else int(stops.max()) + 1
        visible = None
        if self.static or (stops != length - 1).any() or not self.is_soft:
            stops = torch.from_numpy(self._padded(stops)).to(self.device)
            visible = self.seen[stops, None, :length]  # row, head, 1, source
        target_length = self._target_length(int(written.max()) + 1)
        hidden_states = self._advance(where, layer, visible, length, self._positions(written), target_length)
        if layer + 1 < self.deciding_layers:
            return None
        logits = self.weights.output(hidden_states[: len(rows)])
        if self.model.final_logits_bias is not None:
            logits += self.model.final_logits_bias
        tokens = self._choose(logits, streams)
        following = np.minimum(written + 1, self.max_positions - 1)
        ids = tokens
        if self.static:
            ids = torch.nn.functional.pad(tokens, (0, self.slots - len(rows)))
        self._begin(where, ids, self._positions(following), self._target_length(int(following.max()) + 1))
        return tokens

    def _target_length(self, length: int) -> int:
        return self.target_memory.shape[3] if self.static else length

    def _choose(self, logits: Tensor, streams: Sequence[TokenStream]) -> Tensor:
        """The best token of each row. Padding is no word: it is never written."""
        pad = self.config.pad_token_id
        groups: dict[tuple, list[int]] = {}  # streams that choose in the same way, at the same length
        for row, stream in enumerate(streams):
            group = None if stream.choose is None else (stream.choose, len(stream.tokens))
            groups.setdefault(group, []).append(row)
        if len(groups) == 1:
            return (streams[0].choose or choose_best)(logits, streams, pad)
        tokens = torch.empty(len(streams), dtype=torch.long, device=self.device)
        for rows in groups.values():
            group = [streams[row] for row in rows]
            choose = group[0].choose or choose_best
            tokens[rows] = choose(logits[rows], group, pad)
        return tokens

    def _begin(self, where, ids: Tensor, positions: int | Tensor, target_length: int):
        """Takes a target token in, up to the first decision."""
        decoder = self.decoder
        hidden_states = embedded(decoder, ids, decoder.embed_positions.weight[positions])
        memory = self._select(self.target_memory[:2].narrow(3, 0, target_length), where)
        visible = self._visible(positions, target_length)
        hidden_states = self._attend_to_self(self.weights.decoder[0], hidden_states, memory, positions, visible)
        self._put_back(memory, where, 0, positions)
        self._keep(where, 0, hidden_states)

    def _advance(self, where, layer: int, visible: Tensor | None, length: int, positions, target_length) -> Tensor:
        """From a decision to the next one, or to the end of the decoder."""
        hidden_states, is_last = self.hidden_states[where], layer + 1 == self.deciding_layers
        first = self.deciding[layer]
        last = len(self.decoder.layers) - 1 if is_last else self.deciding[layer + 1]
        parts = 1 + self.is_soft
        source = self.source_memory[parts * first : parts * (last + is_last)].narrow(3, 0, length)
        source = iter(self._select(source, where).unbind())
        memory = self._select(self.target_memory[2 * first + 2 : 2 * last + 2].narrow(3, 0, target_length), where)
        target = iter(memory.split(2)) if last > first else None
        written = self._visible(positions, target_length) if last > first else None
        for index in range(first, last + 1):
            weights = self.weights.decoder[index]
            if index > first:
                hidden_states = self._attend_to_self(weights, hidden_states, next(target), positions, written)
            if is_last or index < last:
                key = next(source) if self.is_soft else None
                hidden_states = self._attend_to_source(weights, hidden_states, key, next(source), visible)
        if last > first:
            self._put_back(memory, where, 2 * first + 2, positions)
        if not is_last:
            self._keep(where, layer + 1, hidden_states)
        return hidden_states

    def _keep(self, where, layer: int, hidden_states: Tensor):
        """The state in which a slot waits for a decision."""
        self.hidden_states[where] = hidden_states
        if self.is_learned:
            self.query[where] = self.policies[layer].query(hidden_states[:, None]).squeeze(2)

    def _visible(self, positions: int | Tensor, length: int) -> Tensor | None:
        """What is added to the energies of target tokens: nothing where all rows have as many."""
        if isinstance(positions, int):
            return None
        later = torch.arange(length, device=self.device) > positions[:, None]
        hidden = torch.zeros(later.shape, dtype=self.dtype, device=self.device).masked_fill_(later, -torch.inf)
        return hidden[:, None, None]

    def _attend_to_self(
        self, layer: DecoderLayerWeights, hidden_states: Tensor, memory: Tensor, positions, visible: Tensor | None
    ) -> Tensor:
        """Stores a token's key and value beside those before it, and attends to all."""
        _, rows, heads, _, dim = memory.shape
        projected = layer.self_qkv(hidden_states).view(rows, 3, heads, dim)
        new = projected[:, 1:]  # row, key or value, head, dim
        if isinstance(positions, int):
            memory.select(3, positions).copy_(new.transpose(0, 1))
        else:
            memory[:, torch.arange(rows, device=self.device), :, positions] = new
        output = attend_once(projected[:, 0], *memory.unbind(), visible)
        return added(hidden_states, output.reshape(hidden_states.shape), layer.self_out, layer.self_norm)

    def _attend_to_source(self, layer: DecoderLayerWeights, hidden_states: Tensor, key, value, visible) -> Tensor:
        if key is None:
            output = visible @ value
        else:
            query = layer.source_query(hidden_states)
            output = attend_once(query.view(query.shape[0], -1, self.head_dim), key, value, visible)
        output = output.reshape(hidden_states.shape)
        return feed_forward(layer, added(hidden_states, output, layer.source_out, layer.source_norm))

    def _select(self, memory: Tensor, where: slice | Tensor) -> Tensor:
        """The rows of a batch: a copy only where they are not the first slots."""
        if isinstance(where, slice):
            return memory if where.stop == self.slots else memory[:, where]
        return memory[:, where]  # `index_select` would copy all slots first

    def _put_back(self, memory: Tensor, where: slice | Tensor, part: int, positions: int | Tensor):
        """Stores what was written to a copy at one position a row."""
        if not isinstance(where, slice):
            new = memory[:, torch.arange(len(where), device=self.device), :, positions]
            self.target_memory[part : part + memory.shape[0], where, :, positions] = new

    def fetch(self, *results: Tensor | None) -> list[np.ndarray]:
        if self.device.type == "cpu":
            return [result.numpy() for result in results]
        joined = torch.cat([result.flatten() for result in results]).cpu()
        parts = joined.split([result.numel() for result in results])
        return [part.view(result.shape).numpy() for part, result in zip(parts, results)]
