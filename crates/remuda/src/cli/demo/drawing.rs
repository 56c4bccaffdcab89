//! The picture: where a model that draws lies at hand, one more worker draws with it, and what it drew is shown.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use remuda_models::{Capability, ModelSpec, engine};
use serde_json::{Value, json};

use super::super::Client;

/// The model that comes with the project, seen from where its README says to type.
const AT_HAND: &str = "models/emoji/weights";
pub(super) const WORKER: &str = "pinto";
pub(super) const SCENE: &str = "a horse face on a blue background";
/// What fits into most terminals, two pixels above each other in a character.
const COLUMNS_MAX: u32 = 64;

/// A model that this build can draw with.
pub(super) struct DrawingModel {
    pub(super) model: PathBuf,
}

impl DrawingModel {
    /// The model that was named; else the one at hand, if there is one and this build can use it.
    pub(super) fn find(named: Option<PathBuf>) -> anyhow::Result<Option<DrawingModel>> {
        let is_named = named.is_some();
        let model = named.unwrap_or_else(|| AT_HAND.into());
        let found = engine::engines().find(&ModelSpec::new("draw", &model));
        match found {
            Ok((_, found)) if found.capability == Capability::TextToImage => {
                let model = std::path::absolute(&model).context("this folder has no name")?;
                Ok(Some(DrawingModel { model }))
            }
            Ok((_, found)) if is_named => {
                bail!("{} is a model for {}, which draws nothing", model.display(), found.capability)
            }
            Err(error) if is_named => Err(error.into()),
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// Why nothing is drawn where a model lies at hand: this build cannot.
    pub(super) fn lacking() -> Option<&'static str> {
        let is_lacking = !cfg!(feature = "candle") && Path::new(AT_HAND).exists();
        is_lacking.then_some("no picture: this build cannot draw; `--features candle` brings that")
    }

    pub(super) fn job() -> Value {
        let workflow = json!({
            "capability": "text_to_image", "prompt": SCENE, "steps": 12, "guidance": 4.0, "seed": 7,
        });
        json!({ "service": "text_to_image", "workflow": workflow })
    }
}

/// Shows what was drawn where it can be shown, and keeps it where that was asked for. What there is to say of it.
pub(super) async fn shown(client: &Client, job: &str, keep: Option<&Path>) -> anyhow::Result<String> {
    let result = client.get(&format!("/remuda/v1/jobs/{job}/result")).await?;
    let hash = result["outputs"][0]["hash"].as_str().context("no picture came with it")?;
    let request = client.request(reqwest::Method::GET, &format!("/remuda/v1/blobs/{hash}"));
    let file = client.open(request).await?.bytes().await?;
    if let Some(keep) = keep {
        std::fs::write(keep, &file).with_context(|| format!("cannot write {}", keep.display()))?;
    }
    let kept = match keep {
        Some(keep) => format!("kept in {}", keep.display()),
        None => "keep it with --picture FILE".to_owned(),
    };
    let mut told = format!("\nThe picture of {SCENE:?} ({kept})");
    if std::io::stdout().is_terminal() {
        told.push_str(":\n\n");
        told.push_str(&in_characters(&file).context("what was drawn is no picture")?);
    }
    Ok(told)
}

/// Two pixels in each character: the upper one in the colour of the letter, the lower one in that of the ground.
fn in_characters(file: &[u8]) -> anyhow::Result<String> {
    let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info()?;
    let mut pixels = vec![0; reader.output_buffer_size().context("it is too large")?];
    let info = reader.next_frame(&mut pixels)?;
    if (info.color_type, info.bit_depth) != (png::ColorType::Rgb, png::BitDepth::Eight) {
        bail!("its colours are stored in another way than ours draw");
    }
    let step = info.width.div_ceil(COLUMNS_MAX).max(1) as usize;
    let colour = |x: usize, row: &[u8]| {
        row.get(3 * x..3 * x + 3).map(|rgb| format!("{};{};{}", rgb[0], rgb[1], rgb[2]))
    };
    let rows: Vec<_> = pixels.chunks_exact(info.line_size).step_by(step).collect();
    let mut text = String::new();
    for pair in rows.chunks_exact(2) {
        text.push_str("  ");
        for x in (0..info.width as usize).step_by(step) {
            let (above, below) = colour(x, pair[0]).zip(colour(x, pair[1])).context("it ends early")?;
            text.push_str(&format!("\x1b[38;2;{above};48;2;{below}m▀"));
        }
        text.push_str("\x1b[0m\n");
    }
    Ok(text)
}
