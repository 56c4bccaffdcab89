"""Makes two tiny Stable Diffusion folders and writes what diffusers answers for them to diffusion.json.

The tests write the same folders (names, shapes and configurations are in the fixture, numbers come from the formula below)
and hold the engine to the same answers. Nobody needs Python to run the tests; this is how the fixture was made:

    pip install torch==2.11.0 diffusers==0.42.1 transformers==5.22.2 numpy==2.4.6
    python diffusion.py FOLDER

`first` is like Stable Diffusion 1: epsilon, DDIM, projections by convolution, quick GELU, odd sizes inside.
`second` is like Stable Diffusion 2: v-prediction, Euler, linear projections, heads by level, GELU, padding with "!".
"""

import json
import math
import sys
from pathlib import Path

import diffusers
import numpy as np
import torch
import transformers
from diffusers import AutoencoderKL, DDIMScheduler, EulerDiscreteScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def fnv(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def uniform(name, count):
    """Numbers from -1 to 1, multiples of 2^-23: exact in every float."""
    x = (np.uint64(fnv(name)) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)).astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(40)).astype(np.float64) / (1 << 23) - 1.0


def tensor(name, shape):
    numbers = uniform(name, math.prod(shape)).reshape(shape)
    if name.endswith(".bias"):
        numbers = numbers * 0.1
    elif len(shape) == 1:
        numbers = 1.0 + numbers * 0.1
    else:
        numbers = numbers * math.sqrt(3.0 / math.prod(shape[1:]))
    return torch.from_numpy(numbers.astype(np.float32))


def ln(s):
    """Only sums, products and quotients: alike on every machine."""
    m, e = math.frexp(s)
    if m < 0.7071067811865476:
        m, e = m * 2.0, e - 1
    z = (m - 1.0) / (m + 1.0)
    squared, power, total = z * z, z, 0.0
    for k in range(1, 28, 2):
        total += power / k
        power *= squared
    return e * 0.6931471805599453 + 2.0 * total


def noise(seed, count):
    """The engine's noise: SplitMix64, two numbers at a time by Marsaglia's polar method."""
    state, out = seed, []

    def draw():
        nonlocal state
        state = (state + GOLDEN) & MASK
        x = state
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        x = x ^ (x >> 31)
        return (x >> 11) / (1 << 52) - 1.0

    while len(out) < count:
        a, b = draw(), draw()
        s = a * a + b * b
        if 0.0 < s < 1.0:
            factor = math.sqrt(-2.0 * ln(s) / s)
            out += [a * factor, b * factor]
    return np.array(out[:count], dtype=np.float64).astype(np.float32)


def bytes_to_letters():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + n) for n in range(len(others))]


MERGES = ["t h", "th e</w>", "c a", "ca t</w>", "h o", "ho r", "hor s", "hors e</w>", "i n", "r e", "re d</w>", "o n</w>"]


def vocabulary():
    letters = bytes_to_letters()
    words = letters + [letter + "</w>" for letter in letters] + [merge.replace(" ", "") for merge in MERGES]
    words += ["<|startoftext|>", "<|endoftext|>"]
    return {word: number for number, word in enumerate(words)}


def write_tokenizer(folder, pad):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocabulary()))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n")
    special = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "pad_token": pad}
    settings = special | {"model_max_length": 77, "tokenizer_class": "CLIPTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return CLIPTokenizer.from_pretrained(folder)


def fill(module):
    module.load_state_dict({name: tensor(name, list(value.shape)) if value.is_floating_point() else value for name, value in module.state_dict().items()})
    return module.eval()


VARIANTS = {
    "first": {
        "pad": "<|endoftext|>",
        "unet": {"block_out_channels": (16, 32, 32), "layers_per_block": 1, "sample_size": 10, "norm_num_groups": 4,
                 "cross_attention_dim": 16, "attention_head_dim": 4,
                 "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
                 "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D")},
        "vae": {"block_out_channels": (8, 8, 16), "layers_per_block": 1, "latent_channels": 4, "norm_num_groups": 4, "sample_size": 40,
                "down_block_types": ("DownEncoderBlock2D",) * 3, "up_block_types": ("UpDecoderBlock2D",) * 3},
        "text": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_act": "quick_gelu"},
        "scheduler": DDIMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False,
                                   set_alpha_to_one=False, steps_offset=1, timestep_spacing="leading"),
        "size": (24, 40), "steps": 3, "seed": 7,
    },
    "second": {
        "pad": "!",
        "unet": {"block_out_channels": (16, 32), "layers_per_block": 2, "sample_size": 8, "norm_num_groups": 8,
                 "cross_attention_dim": 24, "attention_head_dim": (2, 4), "use_linear_projection": True,
                 "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")},
        "vae": {"block_out_channels": (8, 16), "layers_per_block": 2, "latent_channels": 4, "norm_num_groups": 4, "sample_size": 16,
                "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2, "scaling_factor": 0.2},
        "text": {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3, "hidden_act": "gelu"},
        "scheduler": EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
                                            prediction_type="v_prediction", steps_offset=1, timestep_spacing="linspace"),
        "size": (16, 16), "steps": 4, "seed": 8,
    },
}
PROMPTS = ["the red horse", "A cat's  tail on THE hill, 42 times! \u00e9\u732b", "", "in the " * 60]
PROMPT, NEGATIVE, GUIDANCE = PROMPTS[1], "red", 5.0


def round_numbers(array):
    return [float(f"{number:.7g}") for number in np.asarray(array, dtype=np.float64).ravel()]


def make(name, variant, folder):
    tokenizer = write_tokenizer(folder / "tokenizer", variant["pad"])
    vocab = vocabulary()
    text = fill(CLIPTextModel(CLIPTextConfig(vocab_size=len(vocab), max_position_embeddings=77, bos_token_id=len(vocab) - 2,
                                             eos_token_id=len(vocab) - 1, projection_dim=16, **variant["text"])))
    unet, vae = fill(UNet2DConditionModel(**variant["unet"])), fill(AutoencoderKL(**variant["vae"]))
    scheduler = variant["scheduler"]
    pipe = StableDiffusionPipeline(vae=vae, text_encoder=text, tokenizer=tokenizer, unet=unet, scheduler=scheduler,
                                   safety_checker=None, feature_extractor=None, requires_safety_checker=False)
    pipe.set_progress_bar_config(disable=True)
    pipe.save_pretrained(folder)

    def ids(prompt):
        return tokenizer(prompt, padding="max_length", max_length=77, truncation=True, return_tensors="pt").input_ids

    width, height = variant["size"]
    factor = 2 ** (len(vae.config.block_out_channels) - 1)
    shape = (1, 4, height // factor, width // factor)
    latents = torch.from_numpy(noise(variant["seed"], math.prod(shape)).reshape(shape))
    with torch.no_grad():
        embedding = text(ids(PROMPT))[0]
        predicted = unet(latents, 341, encoder_hidden_states=embedding).sample
        decoded = vae.decode(latents / vae.config.scaling_factor).sample
        drawn = {"prompt": PROMPT, "negative_prompt": NEGATIVE, "guidance_scale": GUIDANCE, "num_inference_steps": variant["steps"],
                 "height": height, "width": width, "latents": latents}
        final = pipe(**drawn, output_type="latent").images
        pixels = np.round(pipe(**drawn, output_type="np").images[0] * 255.0).astype(int)
    configs = {
        "model_index.json": json.loads((folder / "model_index.json").read_text()),
        "scheduler/scheduler_config.json": json.loads((folder / "scheduler/scheduler_config.json").read_text()),
        "unet/config.json": json.loads((folder / "unet/config.json").read_text()),
        "vae/config.json": json.loads((folder / "vae/config.json").read_text()),
        "text_encoder/config.json": json.loads((folder / "text_encoder/config.json").read_text()),
    }
    shapes = {part: {key: list(value.shape) for key, value in module.state_dict().items() if value.is_floating_point()}
              for part, module in [("unet", unet), ("vae", vae), ("text_encoder", text)]}
    return {
        "pad": variant["pad"], "merges": MERGES, "configs": configs, "shapes": shapes,
        "tokens": [[prompt, ids(prompt)[0].tolist()] for prompt in PROMPTS],
        "prompt": PROMPT, "negative_prompt": NEGATIVE, "guidance": GUIDANCE,
        "size": variant["size"], "steps": variant["steps"], "seed": variant["seed"],
        "noise": round_numbers(latents)[:16],
        "embedding": round_numbers(embedding), "predicted": round_numbers(predicted), "decoded": round_numbers(decoded),
        "final": round_numbers(final), "pixels": pixels.ravel().tolist(),
        "schedules": schedules() if name == "first" else None,
    }


def schedules():
    """Times of every spacing, and what one number becomes in all steps when the model always says 0.5."""
    ddim, euler = DDIMScheduler, EulerDiscreteScheduler
    asked = [(kind, {"beta_schedule": betas, "prediction_type": prediction, "timestep_spacing": spacing})
             for kind in [ddim, euler] for betas in ["linear", "scaled_linear"]
             for spacing in ["leading", "trailing", "linspace"] for prediction in ["epsilon", "v_prediction", "sample"]]
    asked += [(kind, {"beta_schedule": "squaredcos_cap_v2", "prediction_type": "epsilon"}) for kind in [ddim, euler]]
    asked += [(kind, {"beta_schedule": "scaled_linear", "prediction_type": "v_prediction", "timestep_spacing": "trailing",
                      "rescale_betas_zero_snr": True}) for kind in [ddim, euler]]
    asked += [(ddim, {"clip_sample": True}), (ddim, {"set_alpha_to_one": False})]
    return [schedule(kind, options) for kind, options in asked]


def schedule(kind, options):
    noise = {"beta_start": 0.00085, "beta_end": 0.012, "steps_offset": 1}
    options = noise | ({"clip_sample": False} if kind is DDIMScheduler else {}) | options
    scheduler = kind(**options)
    scheduler.set_timesteps(7)
    x = torch.tensor([1.25]) * scheduler.init_noise_sigma
    path, scaled = [float(x)], []
    for t in scheduler.timesteps:
        scaled.append(float(scheduler.scale_model_input(x, t)))
        x = scheduler.step(torch.tensor([0.5]), t, x).prev_sample
        path.append(float(x))
    return {"config": options | {"_class_name": kind.__name__}, "times": [float(t) for t in scheduler.timesteps],
            "path": round_numbers(path), "scaled": round_numbers(scaled)}


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    folder = Path(sys.argv[1])
    made = {name: make(name, variant, folder / name) for name, variant in VARIANTS.items()}
    made["made_with"] = {"torch": torch.__version__.split("+")[0], "diffusers": diffusers.__version__,
                         "transformers": transformers.__version__, "numpy": np.__version__}
    Path(__file__).with_name("diffusion.json").write_text(json.dumps(made, separators=(",", ":")) + "\n")
