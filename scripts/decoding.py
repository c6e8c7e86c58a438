"""How fast translations are written, beside MarianMTModel and CTranslate2: `benchmark.py decode pool`.

Random weights of four sizes, greedy, 20 source tokens and 20 target tokens. CTranslate2 reads whole sentences and
cannot stream; it is what an engineer would take instead. It joins where it is installed (`pip install ctranslate2`).
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import MarianConfig, MarianMTModel

from hf_dualpath import SiMTConfig, SiMTForConditionalGeneration
from hf_dualpath.inference.export import exported_config, write_graphs
from hf_dualpath.inference.onnx_backend import OnnxTranslator, load_sessions
from hf_dualpath.model.engine_dualpath import Limits


SIZES = (  # vocabulary, width, feed-forward width, layers, heads; the third is the paper's, the fourth OPUS-MT's
    (8000, 128, 256, 4, 4),
    (8000, 192, 768, 4, 4),
    (32000, 512, 1024, 6, 8),
    (58101, 512, 2048, 6, 8),
)
LENGTH = 20


def settings(vocabulary: int, width: int, ffn: int, layers: int, heads: int) -> dict:
    sizes = {"vocab_size": vocabulary, "d_model": width, "encoder_layers": layers, "decoder_layers": layers}
    sizes |= {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("ffn_dim", ffn), ("attention_heads", heads))
    }
    rest = {"scale_embedding": True, "activation_function": "relu", "max_position_embeddings": 512}
    return sizes | rest | {"pad_token_id": vocabulary - 1, "eos_token_id": 0, "decoder_start_token_id": vocabulary - 1}


def our_model(size: tuple) -> SiMTForConditionalGeneration:
    torch.manual_seed(0)
    languages = {"source_language": "de", "target_language": "en"}
    return SiMTForConditionalGeneration(SiMTConfig(**settings(*size), **languages)).eval()


def sources(batch: int) -> list[list[int]]:
    return [[*torch.randint(3, 7000, (LENGTH - 1,)).tolist(), 0] for _ in range(batch)]


def streams(translator, sentences: list[list[int]], **more) -> Callable[[], None]:
    """Decodes all of them in one engine; nothing ends before its 20 tokens."""
    given = translator.stream_settings(**more) | {"limits": Limits(frozenset(), 512, LENGTH)}

    def run():
        engine = translator.open_engine(len(sentences))
        opened = [engine.open(**given) for _ in sentences]
        for stream, sentence in zip(opened, sentences):
            stream.feed(sentence)
            stream.end()
        while engine.tick():
            pass
        assert all(len(stream.path) == LENGTH for stream in opened)

    return run


def systems(size: tuple, batch: int, folder: Path) -> dict[str, Callable[[], object]]:
    """What is compared at one size."""
    sentences = sources(batch)
    ids = torch.tensor(sentences)
    forced = {"min_new_tokens": LENGTH, "max_new_tokens": LENGTH}
    model, marian = our_model(size), MarianMTModel(MarianConfig(**settings(*size))).eval()
    found = {
        "Marian": lambda: marian.generate(input_ids=ids, attention_mask=torch.ones_like(ids), num_beams=1, **forced),
        "torch": lambda: model.generate(ids, torch.ones_like(ids), **forced),
    }
    for name, int8 in (("onnx float32", False), ("onnx int8", True)):
        home = folder / name / str(size[0]) / str(size[1])
        if not home.exists():
            write_graphs(model, home, int8)
        found[name] = streams(OnnxTranslator(exported_config(model), load_sessions(home)), sentences)
    if find_spec("ctranslate2"):
        texts = [[f"t{token}" for token in sentence[:-1]] + ["</s>"] for sentence in sentences]
        for name, kind in (("CTranslate2 float32", "float32"), ("CTranslate2 int8", "int8")):
            translator = ctranslate2_of(marian, folder / name / str(size[0]) / str(size[1]), kind)
            found[name] = lambda translator=translator: translator.translate_batch(
                texts, beam_size=1, min_decoding_length=LENGTH, max_decoding_length=LENGTH
            )
    return found


def ctranslate2_of(marian: MarianMTModel, home: Path, kind: str):
    import ctranslate2
    from ctranslate2.converters.transformers import MarianMTLoader

    if not home.exists():
        spec = MarianMTLoader().get_model_spec(marian)
        vocabulary = ["</s>", *(f"t{token}" for token in range(1, marian.config.vocab_size - 1))]
        spec.register_source_vocabulary(vocabulary)
        spec.register_target_vocabulary(vocabulary)
        spec.config.eos_token = spec.config.decoder_start_token = "</s>"
        spec.config.unk_token = "t1"
        spec.validate()
        spec.optimize(quantization=None if kind == "float32" else kind)
        home.mkdir(parents=True)
        spec.save(str(home))
    return ctranslate2.Translator(str(home), device="cpu", compute_type=kind, inter_threads=1, intra_threads=1)


def measure_decoding(alternate, report, sizes=SIZES, rounds: int = 5):
    """Tokens a second of all, and the bars that they must clear."""
    with TemporaryDirectory() as folder:
        for number, size in enumerate(sizes):
            for batch in (1, 32):
                found = systems(size, batch, Path(folder))
                for run in found.values():
                    run()
                seconds = dict(zip(found, alternate(rounds if number < 2 else 3, *found.values())))
                speeds = {name: LENGTH * batch / value for name, value in seconds.items()}
                listed = ", ".join(f"{name} {speed:.0f}" for name, speed in speeds.items())
                print(f"      {size}, batch {batch}, tokens/s: {listed}")
                bar = (2.0 if batch == 1 else 1.5) if number < 2 else 1.1
                report(f"torch over Marian, {size}, batch {batch}", speeds["torch"] / speeds["Marian"], bar, True)
                if "CTranslate2 int8" in speeds:
                    bar = 0.5 if batch == 1 else 0.7
                    ratio = speeds["onnx int8"] / speeds["CTranslate2 int8"]
                    report(f"onnx int8 over CTranslate2 int8, {size}, batch {batch}", ratio, bar, True)


def talks(translator, count: int, read: int) -> Callable[[], None]:
    """Opens many streams and lets them read so many tokens. Each push from then on is one token more for all: they
    read it and write one."""
    given = translator.stream_settings(min_lag=1, max_lag=1) | {"limits": Limits(frozenset(), 512, 512)}
    engine = translator.open_engine(count)
    opened = [engine.open(**given) for _ in range(count)]

    def push():
        for stream, token in zip(opened, torch.randint(3, 7000, (count,)).tolist()):
            stream.feed([token])
        while engine.tick():
            pass

    for _ in range(read):
        push()
    assert all(len(stream.path) == read for stream in opened)
    return push


def megabytes(model, sentences: list[list[int]]) -> float:
    """Of the caches of streams that have read these sentences."""
    engine = model.open_engine()
    for sentence in sentences:
        engine.open(**model.stream_settings()).feed(sentence)
    engine.tick()
    return sum(getattr(engine.backend, name).nbytes for name in engine.backend.shapes) / 2**20


def measure_pool(alternate, report, size=SIZES[2], count: int = 64):
    """Many open streams against one, whether they stay as fast as they were, and what they cost in memory."""
    model = our_model(size)
    sentences = sources(count)
    one, many = streams(model, sentences[:1]), streams(model, sentences)
    one(), many()
    seconds = alternate(3, one, many)
    speeds = LENGTH / seconds[0], LENGTH * count / seconds[1]
    print(f"      tokens/s: one stream {speeds[0]:.0f}, {count} streams {speeds[1]:.0f}")
    report(f"{count} streams in one pool over one stream, {size}", speeds[1] / speeds[0], 10, True)
    early, late = alternate(11, talks(model, count, 5), talks(model, count, 195))
    print(f"      a READ and a WRITE of each: {early * 1000:.0f} ms at token 10, {late * 1000:.0f} ms at token 200")
    report(f"{count} streams: time per token at 200 over at 10", late / early, 1.3, False)
    alone, together = megabytes(model, sentences[:1]), megabytes(model, sentences)
    print(f"      caches of {LENGTH} tokens (room for 32): {alone:.2f} MB a stream, {together:.1f} MB for {count}")
