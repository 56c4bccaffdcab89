"""Trains a small text-to-image model of the Stable Diffusion family from scratch: decoder first, then text encoder and denoiser.

    python train.py data.npz OUT --vae-seconds 120 --seconds 420 [--resume FOLDER]

Pictures are laid on backgrounds of named colours, so that there is something to combine: "a red apple on a blue background".
Writes a folder as diffusers saves it, in 16 bits, and a sheet of samples.
"""

import argparse
import copy
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

PLACES = 24
COLOURS = {
    "white": (255, 255, 255), "black": (24, 24, 27), "red": (220, 50, 47), "orange": (247, 148, 40), "yellow": (250, 220, 80),
    "green": (80, 170, 90), "blue": (60, 120, 220), "purple": (140, 90, 190), "pink": (245, 160, 195), "gray": (150, 155, 160),
}
SHEET = ["red apple", "a cat face on a blue background", "rocket on a black background", "a pizza on a green background",
         "grinning face", "a dolphin on a yellow background", "a bicycle on a pink background", "hot beverage on a purple background"]


def captions_of(names):
    """For every picture the ways to ask for it, without and with each background."""
    plain = [[name, f"a {name}", f"a picture of {name}", f"{name} on a white background"] for name in names]
    on = [[[f"{name} on a {colour} background", f"a {name} on {colour}", f"{name}, {colour} background"] for colour in COLOURS] for name in names]
    return plain, on


def letters():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(byte) for byte in plain] + [chr(256 + n) for n in range(256 - len(plain))]


def make_tokenizer(folder, texts):
    folder.mkdir(parents=True, exist_ok=True)
    bpe = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    bpe.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=1400, end_of_word_suffix="</w>", show_progress=False))
    merges = json.loads(bpe.to_str())["model"]["merges"]
    words = letters() + [letter + "</w>" for letter in letters()]
    words += [word for word in ("".join(pair) for pair in merges) if word not in words]
    words += ["<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}, ensure_ascii=False))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in merges) + "\n")
    special = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special | {"model_max_length": PLACES, "tokenizer_class": "CLIPTokenizer"}))
    return CLIPTokenizer.from_pretrained(folder)


def captured(step):
    """The step as one CUDA graph: small layers are otherwise slower to ask for than to compute."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def main():
    args = argparse.ArgumentParser()
    args.add_argument("data")
    args.add_argument("out")
    args.add_argument("--vae-seconds", type=float, default=120)
    args.add_argument("--seconds", type=float, default=420)
    args.add_argument("--resume")
    args.add_argument("--batch", type=int, default=512)
    args.add_argument("--rate", type=float, default=1e-3)
    args = args.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    device, out = "cuda", Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    data = np.load(args.data)
    names = [str(name) for name in data["captions"]]
    pictures = torch.from_numpy(data["pictures"]).to(device).permute(0, 3, 1, 2).float() / 255
    colours = torch.tensor(list(COLOURS.values()), device=device).float() / 255
    plain, on = captions_of(names)

    if args.resume:
        pipe = StableDiffusionPipeline.from_pretrained(args.resume, variant="fp16", torch_dtype=torch.float32, safety_checker=None)
        tokenizer, text, unet, vae = pipe.tokenizer, pipe.text_encoder, pipe.unet, pipe.vae
    else:
        texts = [caption for group in plain for caption in group] + [caption for name in on for group in name for caption in group]
        tokenizer = make_tokenizer(out / "tokenizer", texts)
        size = len(tokenizer.get_vocab())
        text = CLIPTextModel(CLIPTextConfig(vocab_size=size, hidden_size=128, intermediate_size=384, num_hidden_layers=3, num_attention_heads=4,
                                            max_position_embeddings=PLACES, bos_token_id=size - 2, eos_token_id=size - 1, projection_dim=128))
        unet = UNet2DConditionModel(block_out_channels=(64, 96, 128), layers_per_block=1, sample_size=16, norm_num_groups=16, cross_attention_dim=128,
                                    attention_head_dim=4, use_linear_projection=True,
                                    down_block_types=("CrossAttnDownBlock2D",) * 3, up_block_types=("CrossAttnUpBlock2D",) * 3)
        vae = AutoencoderKL(block_out_channels=(32, 64, 64), layers_per_block=1, latent_channels=4, norm_num_groups=16, sample_size=64,
                            down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3, mid_block_add_attention=True)
    text, unet, vae = text.to(device), unet.to(device), vae.to(device)
    for part in [unet, vae]:
        part.to(memory_format=torch.channels_last)
    count = lambda module: sum(p.numel() for p in module.parameters()) / 1e6
    print(f"{len(names)} pictures; text {count(text):.2f} M, denoiser {count(unet):.2f} M, decoder {count(vae.decoder):.2f} M of {count(vae):.2f} M", flush=True)

    def tokens(texts):
        return tokenizer(texts, padding="max_length", max_length=PLACES, truncation=True, return_tensors="pt").input_ids

    table_plain = torch.stack([tokens(group) for group in plain]).to(device)
    table_on = torch.stack([torch.stack([tokens(group) for group in name]) for name in on]).to(device)
    empty = tokens([""]).to(device)

    def choose(size):
        which = torch.randint(len(names), (size,), device=device)
        colour = torch.randint(len(COLOURS), (size,), device=device)
        is_plain = torch.rand(size, device=device) < 0.3
        colour = torch.where(is_plain, torch.zeros_like(colour), colour)
        asked = torch.where(is_plain[:, None], table_plain[which, torch.randint(4, (size,), device=device)],
                            table_on[which, colour, torch.randint(3, (size,), device=device)])
        return which, colour, asked

    def laid(which, colour):
        rgba, ground = pictures[which], colours[colour][:, :, None, None]
        picture = rgba[:, :3] * rgba[:, 3:] + ground * (1 - rgba[:, 3:])
        return (picture * 2 - 1).contiguous(memory_format=torch.channels_last)

    def schedule(optimizer, rate, done, seconds):
        left = min(1.0, done / seconds)
        for group in optimizer.param_groups:
            group["lr"].fill_(rate * min(1.0, done / 10 + 0.01) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * left))))

    def adam(parameters, decay):
        return torch.optim.AdamW(parameters, lr=torch.tensor(0.0, device=device), weight_decay=decay, betas=(0.9, 0.99), capturable=True, foreach=True)

    if not args.resume:
        optimizer, shown = adam(vae.parameters(), 1e-4), torch.zeros(2, device=device)
        edges = lambda x: torch.cat([(x[..., 1:] - x[..., :-1]).flatten(1), (x[..., 1:, :] - x[..., :-1, :]).flatten(1)], 1)

        def learn_decoder():
            optimizer.zero_grad(set_to_none=True)
            which, colour, _ = choose(256)
            picture = laid(which, colour)
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                latents = vae.encode(picture).latent_dist
                made = vae.decode(latents.mean + latents.std * torch.randn_like(latents.mean)).sample
            made = made.float()
            off = F.l1_loss(made, picture)
            loss = off + F.mse_loss(made, picture) + F.l1_loss(edges(made), edges(picture)) + 1e-5 * latents.kl().mean() / 64
            loss.backward()
            torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0, foreach=True)
            optimizer.step()
            shown.copy_(torch.stack([loss.detach(), off.detach()]))

        learn = captured(learn_decoder)
        begun, step = time.time(), 0
        while time.time() - begun < args.vae_seconds:
            schedule(optimizer, 2e-3, time.time() - begun, args.vae_seconds)
            learn()
            step += 1
            if step % 20 == 0:
                torch.cuda.synchronize()
            if step % 1000 == 0:
                print(f"decoder {step} {time.time() - begun:.0f} s loss {shown[0].item():.4f} off {shown[1].item():.4f}", flush=True)
        vae.requires_grad_(False).eval()
        with torch.no_grad():
            spread = torch.cat([vae.encode(laid(*choose(256)[:2])).latent_dist.mean for _ in range(8)]).std().item()
        vae.register_to_config(scaling_factor=1 / spread)
        print(f"decoder done after {step} steps; latents spread {spread:.3f}", flush=True)
    vae.requires_grad_(False).eval()
    every = torch.arange(len(names), device=device)
    with torch.no_grad():
        on_colour = lambda colour: torch.cat([vae.encode(laid(some, torch.full_like(some, colour))).latent_dist.mean for some in every.split(256)])
        encoded = torch.stack([on_colour(colour) for colour in range(len(COLOURS))], 1) * vae.config.scaling_factor

    noise = DDIMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", prediction_type="v_prediction", clip_sample=False,
                          set_alpha_to_one=False, steps_offset=1, timestep_spacing="trailing", rescale_betas_zero_snr=True)
    alphas = noise.alphas_cumprod.to(device)
    parameters = [*unet.parameters(), *text.parameters()]
    optimizer, shown = adam(parameters, 1e-3), torch.zeros((), device=device)
    kept = {"unet": copy.deepcopy(unet).requires_grad_(False), "text": copy.deepcopy(text).requires_grad_(False)}
    followed = [(list(kept["unet"].parameters()), list(unet.parameters())), (list(kept["text"].parameters()), list(text.parameters()))]

    def learn_denoiser():
        optimizer.zero_grad(set_to_none=True)
        which, colour, asked = choose(args.batch)
        latents = encoded[which, colour]
        asked = torch.where(torch.rand(args.batch, 1, device=device) < 0.1, empty, asked)
        at = torch.randint(1000, (args.batch,), device=device)
        alpha = alphas[at][:, None, None, None]
        drawn = torch.randn_like(latents)
        noisy, target = alpha.sqrt() * latents + (1 - alpha).sqrt() * drawn, alpha.sqrt() * drawn - (1 - alpha).sqrt() * latents
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            predicted = unet(noisy.contiguous(memory_format=torch.channels_last), at, text(asked)[0]).sample
        loss = F.mse_loss(predicted.float(), target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in followed:
                torch._foreach_lerp_(slow, fast, 0.002)
        shown.lerp_(loss.detach(), 0.01)

    learn = captured(learn_denoiser)
    begun, step = time.time(), 0
    while time.time() - begun < args.seconds:
        schedule(optimizer, args.rate, time.time() - begun, args.seconds)
        learn()
        step += 1
        if step % 20 == 0:
            torch.cuda.synchronize()
        if step % 500 == 0:
            print(f"denoiser {step} {time.time() - begun:.0f} s loss {shown.item():.4f}", flush=True)
    pipe = StableDiffusionPipeline(vae=vae, text_encoder=kept["text"], tokenizer=tokenizer, unet=kept["unet"], scheduler=noise,
                                   safety_checker=None, feature_extractor=None, requires_safety_checker=False)
    pipe.set_progress_bar_config(disable=True)
    pipe.to(device)
    images = pipe(SHEET * 2, num_inference_steps=25, guidance_scale=4.0, generator=torch.Generator(device).manual_seed(1), height=64, width=64).images
    sheet = Image.new("RGB", (64 * 8, 64 * 2))
    for place, image in enumerate(images):
        sheet.paste(image, (64 * (place % 8), 64 * (place // 8)))
    sheet.resize((1024, 256), Image.Resampling.NEAREST).save(out / "sheet.png")
    pipe.to(torch.float16)
    for part in [pipe.unet, pipe.vae]:
        part.to(memory_format=torch.contiguous_format)
    pipe.save_pretrained(out, variant="fp16")


main()
