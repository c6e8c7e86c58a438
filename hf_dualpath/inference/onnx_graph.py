"""The steps of the engine as ONNX graphs, written from a model's weights: `start`, `encode`, `ask` and `write`.

Each graph reads caches and returns what is new; the caches themselves stay where they are, so that no step copies
them. Matrices are float32, or int8 with one scale a column (activations are quantised as they come).
"""

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

from ..model.torch_backend_dualpath import FusedWeights


FLOAT, INTEGER = TensorProto.FLOAT, TensorProto.INT64
MICROSOFT = "com.microsoft"  # operators of ONNX Runtime
ACTIVATIONS = {"relu": ("Relu", ""), "gelu": ("Gelu", MICROSOFT), "swish": ("QuickGelu", MICROSOFT)}


class Graph:
    """A graph that grows by one operator at a time."""

    def __init__(self, name: str, int8: bool):
        self.name, self.int8 = name, int8
        self.nodes, self.initializers, self.inputs, self.outputs = [], [], [], []

    def input(self, name: str, shape: list, kind: int = FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def cache(self, name: str, parts: int, heads: int, length: str, dim: int) -> list[str]:
        """Keys and values of each layer, an input each."""
        return [self.input(f"{name}_{index}", ["rows", heads, length, dim]) for index in range(parts)]

    def output(self, value: str, name: str, shape: list, kind: int = FLOAT):
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def constant(self, values) -> str:
        name = f"w{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def __call__(self, operator: str, *inputs: str, count: int = 1, domain: str = "", **attributes):
        names = [f"v{len(self.nodes)}_{index}" for index in range(count)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, domain=domain, **attributes))
        return names[0] if count == 1 else names

    def shaped(self, value: str, *shape: int) -> str:
        return self("Reshape", value, self.constant(np.array(shape, np.int64)))

    def project(self, states: str, weights) -> str:
        """`states @ matrix + bias`, of rows."""
        bias, matrix = (weight.float().numpy() for weight in weights)
        if not self.int8:
            return self("Gemm", states, self.constant(matrix), self.constant(bias))
        quantised, scale = quantise(matrix, axis=0)
        zero = self.constant(np.zeros(len(scale), np.int8))
        matrices = self.constant(quantised), self.constant(scale), zero, self.constant(bias)
        return self("DynamicQuantizeMatMul", states, *matrices, domain=MICROSOFT)

    def embed(self, tokens: str, table: np.ndarray, positions: str, places: np.ndarray, scale: float) -> str:
        """Embedded tokens and their positions."""
        if self.int8:
            quantised, scales = quantise(table, axis=1)
            rows = self("Cast", self("Gather", self.constant(quantised), tokens), to=FLOAT)
            embedded = self("Mul", rows, self("Gather", self.constant(scales[:, None] * np.float32(scale)), tokens))
        else:
            embedded = self("Gather", self.constant(table * np.float32(scale)), tokens)
        return self("Add", embedded, self("Gather", self.constant(places), positions))

    def added(self, states: str, output: str, weights, norm: tuple) -> str:
        """What attention or the feed-forward map found, projected, added and normalised."""
        _, gain, shift, epsilon = norm
        update = self.project(output, weights)
        scales = self.constant(gain.float().numpy()), self.constant(shift.float().numpy())
        return self("SkipLayerNormalization", update, states, *scales, domain=MICROSOFT, epsilon=epsilon)

    def feed_forward(self, layer, states: str, activation: str) -> str:
        operator, domain = ACTIVATIONS[activation]
        attributes = {"alpha": 1.0} if operator == "QuickGelu" else {}
        inner = self(operator, self.project(states, layer.fc1), domain=domain, **attributes)
        return self.added(states, inner, layer.fc2, layer.final_norm)

    def energies(self, query: str, key: str, scale: float) -> str:
        return self("FusedMatMul", query, key, domain=MICROSOFT, transB=1, alpha=scale)

    def attend_with_new(
        self, query: str, key: str, value: str, past: tuple[str, str], hidden: str, scale: float
    ) -> str:
        """Attention to what is in the cache and to what is new, without joining the two."""
        old = self("Add", self.energies(query, past[0], scale), hidden)
        weights = self("Softmax", self("Concat", old, self.energies(query, key, scale), axis=-1), axis=-1)
        length = self("Shape", old, start=-1)
        new_length = self("Shape", key, start=-2, end=-1)
        of_old, of_new = self("Split", weights, self("Concat", length, new_length, axis=0), axis=-1, count=2)
        return self("Add", self("MatMul", of_old, past[1]), self("MatMul", of_new, value))

    def model(self):
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.initializers)
        domains = [helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=domains, ir_version=9, producer_name="hf_dualpath")
        checker.check_model(model)
        return model


def quantise(matrix: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Seven bits and a sign: with eight, sums of two products overflow on processors without VNNI."""
    scale = np.maximum(np.abs(matrix).max(axis, keepdims=True), 1e-12) / 63
    return np.round(matrix / scale).astype(np.int8), scale.squeeze(axis).astype(np.float32)


class Steps:
    """The graphs of one direction."""

    def __init__(self, model, int8: bool = False):
        self.model, self.config, self.int8 = model, model.config, int8
        self.weights = FusedWeights.of(model)
        self.heads, self.encoder_heads = self.config.decoder_attention_heads, self.config.encoder_attention_heads
        self.dim = self.config.d_model // self.heads
        self.scale = self.dim**-0.5
        self.policy = model.model.decoder.layers[0].policy

    def graphs(self) -> dict:
        found = {"start": self.start(), "encode": self.encode(), "write": self.write()}
        if self.policy.is_learned:
            found["ask"] = self.ask()
        return found

    def embedded(self, graph: Graph, stack, tokens: str, positions: str) -> str:
        table, places = stack.embed_tokens.weight, stack.embed_positions.weight
        return graph.embed(
            tokens, table.detach().float().numpy(), positions, places.float().numpy(), stack.embed_scale
        )

    def split_heads(self, graph: Graph, projected: str) -> list[str]:
        """Query, key and value of one token a row: (row, head, 1, dim) each."""
        parts = graph("Split", projected, axis=-1, count=3, num_outputs=3)
        return [graph.shaped(part, -1, self.heads, 1, self.dim) for part in parts]

    def start(self):
        graph = Graph("start", self.int8)
        tokens = graph.input("tokens", ["rows"], INTEGER)
        positions = graph.input("positions", ["rows"], INTEGER)
        states = self.embedded(graph, self.model.model.decoder, tokens, positions)
        self.begin(graph, states, None)
        return graph.model()

    def begin(self, graph: Graph, states: str, past: tuple | None):
        """The first decoder layer's self-attention, and the query of the policy."""
        layer = self.weights.decoder[0]
        query, key, value = self.split_heads(graph, graph.project(states, layer.self_qkv))
        if past is None:
            output = value  # the only token there is
        else:
            output = graph.attend_with_new(query, key, value, *past, self.scale)
        output = graph.shaped(output, -1, self.config.d_model)
        states = graph.added(states, output, layer.self_out, layer.self_norm)
        graph.output(states, "hidden_states", ["rows", self.config.d_model])
        graph.output(graph("Concat", key, value, axis=2), "first_new", ["rows", self.heads, 2, self.dim])
        if self.policy.is_learned:
            bias, matrix = self.policy.q_proj.bias.detach(), self.policy.q_proj.weight.detach().t()
            query = Graph.project(graph, states, (bias * self.scale, matrix * self.scale))
            graph.output(graph.shaped(query, -1, self.heads, 1, self.dim), "query", ["rows", self.heads, 1, self.dim])

    def encode(self):
        config, graph = self.config, Graph("encode", self.int8)
        heads, width = self.encoder_heads, config.d_model
        dim = width // heads
        tokens = graph.input("tokens", ["rows", "new"], INTEGER)
        positions = graph.input("positions", ["rows", "new"], INTEGER)
        past = graph.cache("past", 2 * config.encoder_layers, heads, "known", dim)
        hidden = graph.input("hidden", ["rows", 1, "new", "known"])  # added to the energies of what is known
        later = graph.input("later", [1, 1, "new", "new"])  # and of what is new: no token sees a later one
        shape = graph("Shape", tokens)
        states = graph.shaped(self.embedded(graph, self.model.model.encoder, tokens, positions), -1, width)
        by_heads = graph("Concat", shape, graph.constant(np.array([heads, dim], np.int64)), axis=0)
        kept = []
        for index, layer in enumerate(self.weights.encoder):
            parts = graph("Split", graph.project(states, layer.self_qkv), axis=-1, count=3, num_outputs=3)
            query, key, value = (
                graph("Transpose", graph("Reshape", part, by_heads), perm=[0, 2, 1, 3]) for part in parts
            )
            kept += [key, value]
            old = graph("Add", graph.energies(query, past[2 * index], dim**-0.5), hidden)
            new = graph("Add", graph.energies(query, key, dim**-0.5), later)
            weights = graph("Softmax", graph("Concat", old, new, axis=-1), axis=-1)
            lengths = graph("Concat", graph("Shape", old, start=-1), graph("Shape", new, start=-1), axis=0)
            of_old, of_new = graph("Split", weights, lengths, axis=-1, count=2)
            output = graph("MatMul", of_old, past[2 * index + 1])
            output = graph("Add", output, graph("MatMul", of_new, value))
            output = graph.shaped(graph("Transpose", output, perm=[0, 2, 1, 3]), -1, width)
            states = graph.feed_forward(
                layer, graph.added(states, output, layer.self_out, layer.self_norm), config.activation_function
            )
        kept = [graph("Unsqueeze", one, graph.constant(np.array([1], np.int64))) for one in kept]
        graph.output(
            graph("Concat", *kept, axis=1), "read_new", ["rows", 2 * config.encoder_layers, heads, "new", dim]
        )
        parts = self.weights.source[0].shape[0] // width
        self.kept(graph, shape, graph.project(states, self.weights.source), parts, "source_new")
        if self.policy.is_learned:
            projection = self.policy.k_proj
            keys = graph.project(states, (projection.bias.detach(), projection.weight.detach().t()))
            self.kept(graph, shape, keys, 1, "policy_new")
        return graph.model()

    def kept(self, graph: Graph, shape: str, projected: str, parts: int, name: str):
        """What the decoder keeps of new source tokens: row, part, head, token, dim."""
        by_part = graph("Concat", shape, graph.constant(np.array([parts, self.heads, self.dim], np.int64)), axis=0)
        value = graph("Transpose", graph("Reshape", projected, by_part), perm=[0, 2, 3, 1, 4])
        graph.output(value, name, ["rows", parts, self.heads, "new", self.dim])

    def ask(self):
        """Selection probabilities of the source tokens that a policy has not seen; float32 always."""
        graph = Graph("ask", False)
        query = graph.input("query", ["rows", self.heads, 1, self.dim])
        keys = graph.input("keys", ["rows", self.heads, "source", self.dim])
        energies = graph.energies(query, keys, 1.0)
        if self.policy.energy_bias is not None:
            energies = graph("Add", energies, graph.constant(self.policy.energy_bias.detach().float().numpy()))
        graph.output(graph("Sigmoid", energies), "probabilities", ["rows", self.heads, 1, "source"])
        return graph.model()

    def write(self):
        """From a decision to the next: the rest of the decoder, the best token, and the beginning of the next one."""
        config, graph = self.config, Graph("write", self.int8)
        layers, width = config.decoder_layers, config.d_model
        states = graph.input("states", ["rows", width])
        source = graph.cache("source", 2 * layers, self.heads, "source", self.dim)
        visible = graph.input("visible", ["rows", "heads", 1, "source"])  # added to the energies
        target = graph.cache("target", 2 * layers, self.heads, "target", self.dim)
        hidden = graph.input("hidden", ["rows", 1, 1, "target"])
        first_hidden = graph.input("first_hidden", ["rows", 1, 1, "target"])  # the first layer is one token ahead
        positions = graph.input("positions", ["rows"], INTEGER)
        kept = []
        for index, layer in enumerate(self.weights.decoder):
            if index:
                query, key, value = self.split_heads(graph, graph.project(states, layer.self_qkv))
                kept += [key, value]
                past = target[2 * index], target[2 * index + 1]
                output = graph.attend_with_new(query, key, value, past, hidden, self.scale)
                output = graph.shaped(output, -1, width)
                states = graph.added(states, output, layer.self_out, layer.self_norm)
            query = graph.shaped(graph.project(states, layer.source_query), -1, self.heads, 1, self.dim)
            energies = graph("Add", graph.energies(query, source[2 * index], self.scale), visible)
            output = graph("MatMul", graph("Softmax", energies, axis=-1), source[2 * index + 1])
            output = graph.shaped(output, -1, width)
            states = graph.feed_forward(
                layer, graph.added(states, output, layer.source_out, layer.source_norm), config.activation_function
            )
        logits = graph.project(states, self.output_weights())
        tokens = graph("ArgMax", logits, axis=-1, keepdims=0)
        graph.output(tokens, "tokens", ["rows"], INTEGER)
        if kept:
            graph.output(
                graph("Concat", *kept, axis=2), "target_new", ["rows", self.heads, 2 * (layers - 1), self.dim]
            )
        past = (target[0], target[1]), first_hidden
        self.begin(graph, self.embedded(graph, self.model.model.decoder, tokens, positions), past)
        return graph.model()

    def output_weights(self):
        """Of the logits; padding is no word, so it is never the best."""
        weight = self.model.lm_head.weight.detach()
        bias = weight.new_zeros(len(weight))
        if self.model.final_logits_bias is not None:
            bias = self.model.final_logits_bias[0].clone()
        bias[self.config.pad_token_id] = -1e9
        return bias, weight.t()
