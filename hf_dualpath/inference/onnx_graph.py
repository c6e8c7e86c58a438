"""The steps of the engine as ONNX graphs, written from a model's weights: `start`, `encode`, `ask` and `write`.

Each graph reads caches and returns what is new; the caches themselves stay where they are, so that no step copies
them. Matrices are float32, or int8 with one scale a column (activations are quantised as they come).
"""

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper
from torch import nn

from ..model.torch_backend_dualpath import Affine, FusedWeights


FLOAT, INTEGER = TensorProto.FLOAT, TensorProto.INT64
MICROSOFT = "com.microsoft"  # operators of ONNX Runtime
BLOCK = 128  # logits
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

    def project(self, states: str, weights: Affine) -> str:
        """`states @ matrix + bias`, of (row, token, width)."""
        bias, matrix = weights.bias.float().numpy(), weights.weight.t().float().numpy()
        if not self.int8:
            return self("Add", self("MatMul", states, self.constant(matrix)), self.constant(bias))
        quantised, scale = quantise(matrix, axis=0)
        zero = self.constant(np.zeros(len(scale), np.int8))
        matrices = self.constant(quantised), self.constant(scale), zero, self.constant(bias)
        return self("DynamicQuantizeMatMul", states, *matrices, domain=MICROSOFT)

    def three(self, projected: str) -> list[str]:
        """Query, key and value."""
        return self("Split", projected, axis=-1, count=3, num_outputs=3)

    def embed(self, tokens: str, table: np.ndarray, positions: str, places: np.ndarray, scale: float) -> str:
        """Embedded tokens and their positions."""
        if self.int8:
            quantised, scales = quantise(table, axis=1, largest=127)
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
        return self("LayerNormalization", self("Add", update, states), *scales, epsilon=epsilon)

    def best(self, scores: str) -> str:
        """The place of the largest number of each row, as a column: the best block first, then the best in it. Over
        thousands of numbers `ArgMax` alone is several times slower."""
        blocks = self("Reshape", scores, self.constant(np.array([0, -1, BLOCK])))  # row, block, number
        block = self("ArgMax", self("ReduceMax", blocks, self.constant(np.array([2])), keepdims=0), axis=1, keepdims=1)
        inside = self("ArgMax", self("GatherND", blocks, block, batch_dims=1), axis=1, keepdims=1)
        return self("Add", self("Mul", block, self.constant(np.array(BLOCK))), inside)

    def feed_forward(self, layer, states: str, activation: str) -> str:
        operator, domain = ACTIVATIONS[activation]
        attributes = {"alpha": 1.0} if operator == "QuickGelu" else {}
        inner = self(operator, self.project(states, layer.fc1), domain=domain, **attributes)
        return self.added(states, inner, layer.fc2, layer.final_norm)

    def attend(
        self, query: str, key: str, value: str, visible: str, heads: int, past: tuple[str, str] = ("", "")
    ) -> str:
        """Attention of all heads; `visible` is added to the energies of what is past, then of what is new."""
        inputs = query, key, value, "", "", visible, *past
        count = 3 if past[0] else 1
        found = self("MultiHeadAttention", *inputs, domain=MICROSOFT, count=count, num_heads=heads)
        return found[0] if past[0] else found

    def model(self):
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.initializers)
        domains = [helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=domains, ir_version=9, producer_name="hf_dualpath")
        checker.check_model(model)
        return model


def quantise(matrix: np.ndarray, axis: int, largest: int = 63) -> tuple[np.ndarray, np.ndarray]:
    """Seven bits, sign included: with eight, sums of two products overflow on processors without VNNI. What is only
    looked up may have eight."""
    scale = np.maximum(np.abs(matrix).max(axis, keepdims=True), 1e-12) / largest
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

    def start(self):
        graph = Graph("start", self.int8)
        tokens = graph.input("tokens", ["rows", 1], INTEGER)
        positions = graph.input("positions", ["rows", 1], INTEGER)
        states = self.embedded(graph, self.model.model.decoder, tokens, positions)
        self.begin(graph, states, None)
        return graph.model()

    def begin(self, graph: Graph, states: str, past: tuple | None):
        """The first decoder layer's self-attention, and the query of the policy."""
        layer, width = self.weights.decoder[0], self.config.d_model
        query, key, value = graph.three(graph.project(states, layer.self_qkv))
        if past is None:
            output = value  # the only token there is
        else:
            output = graph.attend(query, key, value, past[1], self.heads, past[0])
        states = graph.added(states, output, layer.self_out, layer.self_norm)
        graph.output(states, "hidden_states", ["rows", 1, width])
        graph.output(graph("Concat", key, value, axis=-1), "first_new", ["rows", 1, 2 * width])
        if self.policy.is_learned:
            asking = Affine.of(self.policy.q_proj)
            query = graph.project(states, Affine(asking.weight * self.scale, asking.bias * self.scale))
            graph.output(query, "query", ["rows", 1, width])

    def encode(self):
        config, graph = self.config, Graph("encode", self.int8)
        heads, width, layers = self.encoder_heads, config.d_model, config.encoder_layers
        tokens = graph.input("tokens", ["rows", "new"], INTEGER)
        positions = graph.input("positions", ["rows", "new"], INTEGER)
        past = graph.cache("past", 2 * layers, heads, "known", width // heads)
        visible = graph.input("visible", ["rows", 1, "new", "all"])
        states = self.embedded(graph, self.model.model.encoder, tokens, positions)
        kept = []
        for index, layer in enumerate(self.weights.encoder):
            query, key, value = graph.three(graph.project(states, layer.self_qkv))
            kept += [key, value]
            output = graph.attend(query, key, value, visible, heads, (past[2 * index], past[2 * index + 1]))
            states = graph.added(states, output, layer.self_out, layer.self_norm)
            states = graph.feed_forward(layer, states, config.activation_function)
        graph.output(graph("Concat", *kept, axis=-1), "read_new", ["rows", "new", 2 * layers * width])
        source = self.weights.source
        graph.output(graph.project(states, source), "source_new", ["rows", "new", len(source.bias)])
        if self.policy.is_learned:
            graph.output(graph.project(states, Affine.of(self.policy.k_proj)), "policy_new", ["rows", "new", width])
        return graph.model()

    def ask(self):
        """Selection probabilities of the source tokens that a policy has not seen; float32 always."""
        graph = Graph("ask", False)
        query = graph.input("query", ["rows", self.heads, 1, self.dim])
        keys = graph.input("keys", ["rows", self.heads, "source", self.dim])
        energies = graph("FusedMatMul", query, keys, domain=MICROSOFT, transB=1)
        if self.policy.energy_bias is not None:
            energies = graph("Add", energies, graph.constant(self.policy.energy_bias.detach().float().numpy()))
        graph.output(graph("Sigmoid", energies), "probabilities", ["rows", self.heads, 1, "source"])
        return graph.model()

    def write(self):
        """From a decision to the next: the rest of the decoder, the best token, and the beginning of the next one."""
        config, graph = self.config, Graph("write", self.int8)
        layers, width = config.decoder_layers, config.d_model
        states = graph.input("states", ["rows", 1, width])
        source = graph.cache("source", 2 * layers, self.heads, "source", self.dim)
        visible = graph.input("visible", ["rows", "heads", 1, "source"])  # added to the energies
        target = graph.cache("target", 2 * layers, self.heads, "target", self.dim)
        visible_target = graph.input("visible_target", ["rows", 1, 1, "all"])
        visible_next = graph.input("visible_next", ["rows", 1, 1, "all"])  # the first layer is one token ahead
        positions = graph.input("positions", ["rows", 1], INTEGER)
        kept = []
        for index, layer in enumerate(self.weights.decoder):
            if index:
                query, key, value = graph.three(graph.project(states, layer.self_qkv))
                kept += [key, value]
                past = target[2 * index], target[2 * index + 1]
                output = graph.attend(query, key, value, visible_target, self.heads, past)
                states = graph.added(states, output, layer.self_out, layer.self_norm)
            query = graph.project(states, layer.source_query)
            output = graph.attend(query, source[2 * index], source[2 * index + 1], visible, self.heads)
            states = graph.added(states, output, layer.source_out, layer.source_norm)
            states = graph.feed_forward(layer, states, config.activation_function)
        tokens = graph.best(graph.project(states, self.output_weights()))
        graph.output(tokens, "tokens", ["rows", 1], INTEGER)
        if kept:
            graph.output(graph("Concat", *kept, axis=-1), "target_new", ["rows", 1, 2 * (layers - 1) * width])
        past = (target[0], target[1]), visible_next
        self.begin(graph, self.embedded(graph, self.model.model.decoder, tokens, positions), past)
        return graph.model()

    def output_weights(self) -> Affine:
        """Of the logits, in whole blocks. Padding is no word, so it is never the best."""
        weight = self.model.lm_head.weight.detach()
        bias = weight.new_zeros(len(weight))
        if self.model.final_logits_bias is not None:
            bias = self.model.final_logits_bias[0].clone()
        bias[self.config.pad_token_id] = -1e9
        more = -len(weight) % BLOCK
        return Affine(nn.functional.pad(weight, (0, 0, 0, more)), nn.functional.pad(bias, (0, more), value=-1e9))
