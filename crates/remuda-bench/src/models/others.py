"""What others make of the same weights and texts, for `remuda bench models`.

Reads one question a line and answers with one line: {"engine", "threads", "texts", "seconds"} with texts a second of
processor time, {"engine", "vectors": TEXTS} with their vectors. ONNX Runtime gets its graph from the same safetensors
file, fused as its own tool fuses it, and pads as everybody does who uses it.
"""

import json
import os
import sys
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Threads that spin while they wait would count against torch here, as they would against ONNX Runtime.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print is not an answer

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file
from tokenizers import Tokenizer

folder, work = sys.argv[1], sys.argv[2]
config = json.load(open(os.path.join(folder, "config.json")))
LENGTH_MAX = json.load(open(os.path.join(folder, "sentence_bert_config.json")))["max_seq_length"]


def write_graph(path):
    weights = load_file(os.path.join(folder, "model.safetensors"))
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head = hidden // heads
    constants, nodes = [], []

    def const(name, value):
        constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def op(kind, inputs, output, **attributes):
        nodes.append(helper.make_node(kind, inputs, [output], name="do_" + output, **attributes))
        return output

    def norm(row, name, output):
        gain, shift = const(name + ".gain", weights[name + ".weight"]), const(name + ".shift", weights[name + ".bias"])
        return op("LayerNormalization", [row, gain, shift], output, axis=-1, epsilon=config["layer_norm_eps"])

    def linear(row, name, output):
        product = op("MatMul", [row, const(name + ".w", weights[name + ".weight"].T)], output + "_product")
        return op("Add", [product, const(name + ".b", weights[name + ".bias"])], output)

    def number(name, value):
        return const(name, np.array(value, np.float32))

    places = weights["embeddings.position_embeddings.weight"] + weights["embeddings.token_type_embeddings.weight"][0]
    op("Gather", [const("words", weights["embeddings.word_embeddings.weight"]), "input_ids"], "word")
    op("Gather", [const("places", places), "position_ids"], "place")
    row = norm(op("Add", ["word", "place"], "token"), "embeddings.LayerNorm", "row")
    op("Unsqueeze", ["attention_mask", const("axes", np.array([1, 2], np.int64))], "mask_wide")
    op("Cast", ["mask_wide"], "mask_float", to=TensorProto.FLOAT)
    op("Sub", [number("one", 1), "mask_float"], "mask_inverse")
    op("Mul", ["mask_inverse", number("low", -1e9)], "mask")
    apart = const("apart", np.array([0, 0, heads, head], np.int64))
    together = const("together", np.array([0, 0, hidden], np.int64))
    for layer in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{layer}."
        at = lambda what: f"{what}_{layer}"
        for what, order in [("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])]:
            linear(row, f"{name}attention.self.{what}", at(what))
            op("Reshape", [at(what), apart], at(what + "_apart"))
            op("Transpose", [at(what + "_apart")], at(what + "_head"), perm=order)
        op("MatMul", [at("query_head"), at("key_head")], at("score"))
        op("Div", [at("score"), number(at("root"), head**0.5)], at("score_scaled"))
        op("Add", [at("score_scaled"), "mask"], at("score_masked"))
        op("Softmax", [at("score_masked")], at("share"), axis=-1)
        op("MatMul", [at("share"), at("value_head")], at("found_head"))
        op("Transpose", [at("found_head")], at("found_apart"), perm=[0, 2, 1, 3])
        op("Reshape", [at("found_apart"), together], at("found"))
        linear(at("found"), name + "attention.output.dense", at("answer"))
        op("Add", [at("answer"), row], at("answer_sum"))
        row = norm(at("answer_sum"), name + "attention.output.LayerNorm", at("answer_row"))
        linear(row, name + "intermediate.dense", at("inner"))
        op("Div", [at("inner"), number(at("root2"), 2**0.5)], at("inner_scaled"))
        op("Erf", [at("inner_scaled")], at("erf"))
        op("Add", [at("erf"), number(at("erf_one"), 1)], at("erf_sum"))
        op("Mul", [at("inner"), at("erf_sum")], at("gelu_twice"))
        op("Mul", [at("gelu_twice"), number(at("half"), 0.5)], at("gelu"))
        linear(at("gelu"), name + "output.dense", at("shrunk"))
        op("Add", [at("shrunk"), row], at("shrunk_sum"))
        row = norm(at("shrunk_sum"), name + "output.LayerNorm", at("layer"))
    ids = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in
           [("input_ids", ["B", "T"]), ("attention_mask", ["B", "T"]), ("position_ids", [1, "T"])]]
    rows = helper.make_tensor_value_info(row, TensorProto.FLOAT, ["B", "T", hidden])
    graph = helper.make_graph(nodes, "bert", ids, [rows], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, path)


def fused(path):
    """The graph with ONNX Runtime's own fusions for BERT, or as it is where they cannot be had."""
    try:
        from onnxruntime.transformers import optimizer

        better = path.replace(".onnx", ".fused.onnx")
        model = optimizer.optimize_model(
            path, "bert", num_heads=config["num_attention_heads"], hidden_size=config["hidden_size"], opt_level=1)
        model.save_model_to_file(better)
        onnxruntime.InferenceSession(better, providers=["CPUExecutionProvider"])
        return better
    except Exception as error:
        print(f"onnxruntime's fusions cannot be had, so it runs without: {error}", file=sys.stderr)
        return path


class OnnxRuntime:
    def __init__(self):
        self.tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(LENGTH_MAX)
        self.path = os.path.join(work, "model.onnx")
        write_graph(self.path)
        self.path = fused(self.path)
        self.sessions = {}

    def session(self, threads):
        if threads not in self.sessions:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
            # Threads that spin for work would count against it here.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            self.sessions[threads] = onnxruntime.InferenceSession(
                self.path, options, providers=["CPUExecutionProvider"])
        return self.sessions[threads]

    def embed(self, texts, threads):
        tokens = [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
        length = max(map(len, tokens))
        ids = np.zeros((len(tokens), length), np.int64)
        mask = np.zeros_like(ids)
        for at, text in enumerate(tokens):
            ids[at, : len(text)], mask[at, : len(text)] = text, 1
        given = {"input_ids": ids, "attention_mask": mask, "position_ids": np.arange(length)[None]}
        rows = self.session(threads).run(None, given)[0]
        weights = mask[..., None].astype(np.float32)
        vectors = (rows * weights).sum(1) / weights.sum(1)
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


class SentenceTransformers:
    def __init__(self):
        import torch
        from sentence_transformers import SentenceTransformer

        self.torch = torch
        self.model = SentenceTransformer(folder, device="cpu")

    def embed(self, texts, threads):
        if self.torch.get_num_threads() != threads:
            self.torch.set_num_threads(threads)
        return self.model.encode(texts, batch_size=max(1, len(texts)), show_progress_bar=False)


def print_line(what):
    print(json.dumps(what), file=out, flush=True)


engines = {"onnxruntime": OnnxRuntime()}
versions = {"onnxruntime": onnxruntime.__version__}
try:
    import sentence_transformers

    engines["sentence_transformers"] = SentenceTransformers()
    versions["sentence_transformers"] = sentence_transformers.__version__
except ImportError as error:
    print(f"no sentence-transformers here: {error}", file=sys.stderr)
print_line(versions)

for line in sys.stdin:
    question = json.loads(line)
    engine = engines[question["engine"]]
    if "vectors" in question:
        vectors = [engine.embed([text], 1)[0] for text in question["vectors"]]
        print_line({"vectors": [[float(number) for number in vector] for vector in vectors]})
        continue
    texts, threads = question["texts"], question["threads"]
    engine.embed(texts, threads)
    began, count = time.process_time(), 0
    while time.process_time() - began < question["seconds"]:
        engine.embed(texts, threads)
        count += len(texts)
    print_line({"rate": count / (time.process_time() - began)})
