//! Executes a node. Nothing is computed that no client can see: images have one colour, and samplers only take time.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::executor::Run;
use super::super::files::{Folder, Place};
use super::super::graph::Node;
use super::super::image::{Image, jpeg};
use super::super::values;
use super::{BLEND_MODES, Data};

/// The results of a node.
#[derive(Debug, Default)]
pub(in super::super) struct Made {
    pub(in super::super) results: Vec<Data>,
    /// What it displays in history and on the socket.
    pub(in super::super) shown: Option<Value>,
}

/// How a node failed.
#[derive(Debug)]
pub(in super::super) enum Failure {
    Error {
        kind: &'static str,
        message: String,
    },
    Interrupted,
    /// The executor dies, HTTP keeps working.
    Exit,
    /// The process dies.
    Crash,
}

impl Failure {
    pub(in super::super) fn error(kind: &'static str, message: impl Into<String>) -> Failure {
        Failure::Error { kind, message: format!("{}\n", message.into()) }
    }

    pub(in super::super) fn oom() -> Failure {
        let message = "Allocation on device\nThis error means you ran out of memory on your GPU.\n\nTIPS: If the workflow \
                       worked before you might have accidentally set the batch_size to a large number.";
        Failure::Error { kind: "torch.OutOfMemoryError", message: message.to_owned() }
    }

    /// More than the card has: the allocator says both numbers.
    fn huge(vram_bytes: u64) -> Failure {
        let limit = vram_bytes as f64 / f64::from(1 << 30);
        let message = format!(
            "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 33.00 MiB\n\
             Requested               : 300.00 GiB\nDevice limit            : {limit:.2} GiB\nFree (according to CUDA): \
             {limit:.2} GiB\nThis error means you ran out of memory on your GPU."
        );
        Failure::Error { kind: "torch.OutOfMemoryError", message }
    }

    pub(in super::super) fn cuda() -> Failure {
        Failure::error("RuntimeError", "CUDA error: an illegal memory access was encountered")
    }

    pub(in super::super) fn disk() -> Failure {
        Failure::error("OSError", "[Errno 28] No space left on device")
    }
}

/// One sampler step on half a megapixel, in seconds of a GPU with speed 1.
const SAMPLER_STEP: f64 = 0.05;
/// Loading a checkpoint, in the same seconds.
const MODEL_LOAD: f64 = 2.0;

/// Writing one pixel to a file, in the same seconds; counted from a megapixel on.
const WRITE_PIXEL: f64 = 0.16e-6;
const SLOW_TO_WRITE: f64 = 1e6;

/// Executes a node.
pub(in super::super) async fn work(run: &mut Run, node: &Node) -> Result<Made, Failure> {
    match node.class.as_str() {
        "RemudaSleep" => {
            let steps = run.integer(node, "steps", 1).max(1);
            let seconds = run.float(node, "seconds", 0.0) / steps as f64;
            let preview = run.truth(node, "preview").then(|| ("image/jpeg", jpeg()));
            take_steps(run, node, steps, seconds, preview).await?;
            Ok(passed_on(run, node))
        }
        "RemudaHold" => {
            let seconds = run.float(node, "seconds", 0.0);
            run.pause(seconds).await;
            Ok(passed_on(run, node))
        }
        "RemudaFault" => {
            run.strike(node).await?;
            Ok(passed_on(run, node))
        }
        "KSampler" => {
            let Some(Data::Latent(latent)) = run.linked(node, "latent_image") else {
                return Ok(Made::default());
            };
            let pixels = f64::from(latent.width) * f64::from(latent.height) * f64::from(latent.batch);
            let seconds = SAMPLER_STEP * pixels / f64::from(512 * 512);
            let steps = run.integer(node, "steps", 1).max(1);
            take_steps(run, node, steps, seconds, Some(("image/jpeg", jpeg()))).await?;
            let seed = run.integer(node, "seed", 0).to_le_bytes();
            Ok(gives(Data::Latent(Image { rgb: [seed[0], seed[1], seed[2]], ..latent })))
        }
        "SaveImage" => {
            let image = run.image(node, "images");
            let pixels = f64::from(image.width) * f64::from(image.height) * f64::from(image.batch);
            if pixels >= SLOW_TO_WRITE {
                run.pause(pixels * WRITE_PIXEL).await;
            }
            save(run, node)
        }
        "CheckpointLoaderSimple" => {
            let name = run.text(node, "ckpt_name");
            if run.server().models_loaded().insert(name) {
                run.pause(MODEL_LOAD).await;
            }
            Ok(Made { results: vec![Data::Model, Data::Clip, Data::Vae], shown: None })
        }
        _ => at_once(run, node),
    }
}

/// Nodes that take no noticeable time.
fn at_once(run: &mut Run, node: &Node) -> Result<Made, Failure> {
    match node.class.as_str() {
        "EmptyImage" => {
            let color = u32::try_from(run.integer(node, "color", 0)).unwrap_or(0).to_be_bytes();
            Ok(gives(Data::Image(Image { rgb: [color[1], color[2], color[3]], ..blank(run, node) })))
        }
        "EmptyLatentImage" => Ok(gives(Data::Latent(blank(run, node)))),
        "ImageInvert" => Ok(gives(Data::Image(run.image(node, "image").inverted()))),
        "ImageScale" => {
            let size = blank(run, node);
            let image = run.image(node, "image");
            Ok(gives(Data::Image(Image { width: size.width, height: size.height, ..image })))
        }
        "ImageBlend" => {
            let mode = node.input("blend_mode").map(values::python_str).unwrap_or_default();
            if !BLEND_MODES.split_whitespace().any(|known| known == mode) {
                return Err(Failure::error("ValueError", format!("Unsupported blend mode: {mode}")));
            }
            blend(run.image(node, "image1"), run.image(node, "image2"))
        }
        "CLIPTextEncode" => Ok(gives(Data::Conditioning)),
        "VAEDecode" => match run.linked(node, "samples") {
            Some(Data::Latent(latent)) => Ok(gives(Data::Image(latent))),
            _ => Ok(Made::default()),
        },
        "LoadImage" => load(run, node),
        "PreviewImage" => {
            let image = run.image(node, "images");
            let prefix = run.server().estate.disk.temp_prefix();
            Ok(Made { results: Vec::new(), shown: Some(run.keep(image, Folder::Temp, "", &prefix)) })
        }
        "SaveImageWebsocket" => {
            let image = run.image(node, "images");
            for at in 0..image.batch {
                let file = Image { batch: 1, ..image }.to_png(&[]);
                run.progress(node, at.into(), image.batch.into(), Some(("image/png", &file)));
            }
            Ok(Made::default())
        }
        "RemudaFail" => Err(match run.text(node, "kind").as_str() {
            "oom" => Failure::oom(),
            "huge" => Failure::huge(run.server().options().vram_bytes),
            "cuda" => Failure::cuda(),
            "disk" => Failure::disk(),
            "exit" => Failure::Exit,
            "crash" => Failure::Crash,
            _ => Failure::error("ValueError", "failed on request"),
        }),
        "RemudaText" => {
            let text = run.text(node, "text");
            Ok(Made { results: Vec::new(), shown: Some(json!({"text": [text]})) })
        }
        "RemudaNan" => Ok(Made { results: Vec::new(), shown: Some(json!({"value": [values::nan()]})) }),
        "RemudaBlocker" => {
            let message = run.text(node, "message");
            Ok(gives(Data::Blocked(Some(Arc::from(message)))))
        }
        "RemudaSilentBlocker" => Ok(gives(Data::Blocked(None))),
        "RemudaProgressText" => {
            let text = run.text(node, "text");
            run.progress_text(node, &text);
            Ok(passed_on(run, node))
        }
        _ => Ok(passed_on(run, node)),
    }
}

async fn take_steps(
    run: &mut Run,
    node: &Node,
    steps: u64,
    seconds: f64,
    preview: Option<(&'static str, Vec<u8>)>,
) -> Result<(), Failure> {
    for step in 1..=steps {
        run.pause(seconds).await;
        run.heed_interrupt()?;
        run.progress(node, step, steps, preview.as_ref().map(|(kind, bytes)| (*kind, bytes.as_slice())));
    }
    Ok(())
}

fn gives(data: Data) -> Made {
    Made { results: vec![data], shown: None }
}

fn passed_on(run: &Run, node: &Node) -> Made {
    gives(Data::Image(run.image(node, "image")))
}

fn blank(run: &Run, node: &Node) -> Image {
    let size = |name| u32::try_from(run.integer(node, name, 512)).unwrap_or(512);
    let batch = u32::try_from(run.integer(node, "batch_size", 1)).unwrap_or(1);
    Image { width: size("width"), height: size("height"), batch, rgb: [0, 0, 0] }
}

fn blend(one: Image, other: Image) -> Result<Made, Failure> {
    if one.batch != other.batch && one.batch != 1 && other.batch != 1 {
        let message = format!(
            "The size of tensor a ({}) must match the size of tensor b ({}) at non-singleton dimension 0",
            one.batch, other.batch
        );
        return Err(Failure::error("RuntimeError", message));
    }
    let mut rgb = one.rgb;
    for (mine, theirs) in rgb.iter_mut().zip(other.rgb) {
        *mine = u8::midpoint(*mine, theirs);
    }
    Ok(gives(Data::Image(Image { rgb, ..one })))
}

fn load(run: &Run, node: &Node) -> Result<Made, Failure> {
    let name = run.text(node, "image");
    let bytes = run.server().estate.disk.annotated(&name);
    let Some(image) = bytes.and_then(|bytes| Image::from_png(&bytes)) else {
        let message = format!("cannot identify image file '{name}'");
        return Err(Failure::error("PIL.UnidentifiedImageError", message));
    };
    Ok(Made { results: vec![Data::Image(image), Data::Mask], shown: None })
}

fn save(run: &mut Run, node: &Node) -> Result<Made, Failure> {
    let image = run.image(node, "images");
    if run.item().extra.get("extra_pnginfo").is_some_and(Value::is_string) {
        return Err(Failure::error("TypeError", "string indices must be integers, not 'str'"));
    }
    let prefix = run.text(node, "filename_prefix").replace("%width%", &image.width.to_string());
    let prefix =
        prefix.replace("%height%", &image.height.to_string()).replace("%year%", &this_year().to_string());
    let (subfolder, prefix) = prefix.rsplit_once('/').unwrap_or(("", &prefix));
    let place = Place { folder: Folder::Output, subfolder: subfolder.to_owned(), name: prefix.to_owned() };
    if place.leaves_its_folder() {
        let message = "**** ERROR: Saving image outside the output folder is not allowed.";
        return Err(Failure::error("Exception", message));
    }
    Ok(Made { results: Vec::new(), shown: Some(run.keep(image, Folder::Output, subfolder, prefix)) })
}

/// Good enough for a file name: years of 365.2425 days.
fn this_year() -> u64 {
    1970 + super::super::server::now_ms() / 31_556_952_000
}
