//! The `config.json` of each part, as far as images depend on it. Sizes come from here and never from a list of known
//! models; anything a file requires beyond what is implemented is refused by name.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::failure::LoadError;

/// The longest known configuration has 2 KiB.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// No known model has more levels, layers or blocks in a row; products of sizes cannot overflow.
const COUNT_MAX: usize = 64;
const SIZE_MAX: usize = 1 << 20;
/// Each level halves the sides; known models have four.
const LEVELS_MAX: usize = 6;

/// The denoiser.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct UnetConfig {
    pub(super) levels: Vec<UnetLevel>,
    pub(super) channels: usize,
    pub(super) groups: usize,
    pub(super) eps: f64,
    /// The size of a text token's row.
    pub(super) context: usize,
    pub(super) is_projection_linear: bool,
    pub(super) is_cosine_first: bool,
    pub(super) frequency_shift: f64,
    pub(super) downsample_padding: usize,
    /// The latent size it was trained with.
    pub(super) sample: (usize, usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnetLevel {
    pub(super) channels: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    /// Transformer blocks after each layer on the way down and on the way up; zero for levels without cross-attention.
    pub(super) down_blocks: usize,
    pub(super) up_blocks: usize,
    /// The same for the middle block, if this is the deepest level.
    pub(super) blocks: usize,
}

/// The decoder from latents to pixels.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct VaeConfig {
    pub(super) block_out_channels: Vec<usize>,
    #[serde(default = "one")]
    pub(super) layers_per_block: usize,
    pub(super) latent_channels: usize,
    #[serde(default = "thirty_two")]
    pub(super) norm_num_groups: usize,
    #[serde(default = "scaling_factor")]
    pub(super) scaling_factor: f64,
    #[serde(default = "yes")]
    pub(super) use_post_quant_conv: bool,
    #[serde(default = "yes")]
    pub(super) mid_block_add_attention: bool,
    #[serde(default = "three")]
    out_channels: usize,
    #[serde(default = "silu")]
    act_fn: String,
    #[serde(default)]
    up_block_types: Vec<String>,
    shift_factor: Option<f64>,
    latents_mean: Option<serde_json::Value>,
}

/// The text encoder.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct ClipConfig {
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    pub(super) vocab_size: usize,
    #[serde(default = "quick_gelu")]
    pub(super) hidden_act: ClipActivation,
    #[serde(default = "small")]
    pub(super) layer_norm_eps: f64,
    #[serde(default = "seventy_seven")]
    pub(super) max_position_embeddings: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ClipActivation {
    QuickGelu,
    Gelu,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(usize),
    Many(Vec<usize>),
}

impl OneOrMany {
    fn at(&self, place: usize) -> Option<usize> {
        match self {
            OneOrMany::One(one) => Some(*one),
            OneOrMany::Many(many) => many.get(place).copied(),
        }
    }
}

#[derive(Deserialize)]
struct UnetFile {
    in_channels: usize,
    out_channels: usize,
    block_out_channels: Vec<usize>,
    down_block_types: Vec<String>,
    up_block_types: Vec<String>,
    #[serde(default = "two_layers")]
    layers_per_block: OneOrMany,
    cross_attention_dim: OneOrMany,
    #[serde(default = "eight_heads")]
    attention_head_dim: OneOrMany,
    num_attention_heads: Option<OneOrMany>,
    #[serde(default = "one_block")]
    transformer_layers_per_block: OneOrMany,
    #[serde(default = "thirty_two")]
    norm_num_groups: usize,
    #[serde(default = "small")]
    norm_eps: f64,
    #[serde(default)]
    use_linear_projection: bool,
    #[serde(default = "yes")]
    flip_sin_to_cos: bool,
    #[serde(default)]
    freq_shift: f64,
    #[serde(default = "one")]
    downsample_padding: usize,
    #[serde(default)]
    sample_size: Option<OneOrMany>,
    #[serde(flatten)]
    rest: serde_json::Map<String, serde_json::Value>,
}

/// Keys of the denoiser's configuration with the values that are implemented; any other value is another model.
const SUPPORTED_VALUES: [(&str, &[&str]); 25] = [
    ("act_fn", &["\"silu\""]),
    ("addition_embed_type", &["null"]),
    ("attention_type", &["\"default\""]),
    ("center_input_sample", &["false"]),
    ("class_embed_type", &["null"]),
    ("conv_in_kernel", &["3"]),
    ("conv_out_kernel", &["3"]),
    ("cross_attention_norm", &["null"]),
    ("dual_cross_attention", &["false"]),
    ("encoder_hid_dim", &["null"]),
    ("encoder_hid_dim_type", &["null"]),
    ("mid_block_only_cross_attention", &["null", "false"]),
    ("mid_block_scale_factor", &["1", "1.0"]),
    ("mid_block_type", &["\"UNetMidBlock2DCrossAttn\""]),
    ("num_class_embeds", &["null"]),
    ("only_cross_attention", &["false"]),
    ("resnet_out_scale_factor", &["1", "1.0"]),
    ("resnet_skip_time_act", &["false"]),
    ("resnet_time_scale_shift", &["\"default\""]),
    ("reverse_transformer_layers_per_block", &["null"]),
    ("time_cond_proj_dim", &["null"]),
    ("time_embedding_act_fn", &["null"]),
    ("time_embedding_dim", &["null"]),
    ("time_embedding_type", &["\"positional\""]),
    ("timestep_post_act", &["null"]),
];

impl UnetConfig {
    pub(super) fn read(path: &Path) -> Result<Self, LoadError> {
        let written: UnetFile = read(path)?;
        for (key, allowed) in SUPPORTED_VALUES {
            if let Some(value) = written.rest.get(key)
                && !allowed.contains(&value.to_string().as_str())
            {
                return Err(unsupported(path, format!("{key} {value}"), FAMILY));
            }
        }
        if written.in_channels != written.out_channels {
            let (into, out) = (written.in_channels, written.out_channels);
            let what = format!("a denoiser with {into} input and {out} output channels, as for inpainting");
            return Err(unsupported(path, what, FAMILY));
        }
        let count = written.block_out_channels.len();
        if count == 0 || written.down_block_types.len() != count || written.up_block_types.len() != count {
            let detail = "block_out_channels, down_block_types and up_block_types differ in length";
            return Err(wrong(path, detail));
        }
        if count > LEVELS_MAX {
            return Err(unsupported(path, format!("a denoiser with {count} levels"), FAMILY));
        }
        let levels = (0..count).map(|place| written.level(place, path)).collect::<Result<Vec<_>, _>>()?;
        let context = written.cross_attention_dim.at(0).unwrap_or_default();
        sizes(path, &[("cross_attention_dim", context), ("in_channels", written.in_channels)])?;
        if !(written.norm_eps > 0.0 && written.norm_eps < 1.0 && written.freq_shift.abs() < 1e3) {
            return Err(wrong(path, "norm_eps or freq_shift is out of range"));
        }
        if written.downsample_padding > 1 {
            return Err(unsupported(path, "a downsample_padding above 1", FAMILY));
        }
        let sample = written.sample_size.clone().unwrap_or(OneOrMany::One(64));
        let sample = (sample.at(0).unwrap_or(64), sample.at(1).unwrap_or(64));
        if !(1..=512).contains(&sample.0) || !(1..=512).contains(&sample.1) {
            return Err(wrong(path, "sample_size is not from 1 to 512"));
        }
        Ok(UnetConfig {
            levels,
            channels: written.in_channels,
            groups: written.norm_num_groups,
            eps: written.norm_eps,
            context,
            is_projection_linear: written.use_linear_projection,
            is_cosine_first: written.flip_sin_to_cos,
            frequency_shift: written.freq_shift,
            downsample_padding: written.downsample_padding,
            sample,
        })
    }
}

impl UnetFile {
    fn level(&self, place: usize, path: &Path) -> Result<UnetLevel, LoadError> {
        // Files store the number of heads as `attention_head_dim`, an old mistake that all models were saved with.
        let heads = self.num_attention_heads.as_ref().unwrap_or(&self.attention_head_dim);
        let blocks = self.transformer_layers_per_block.at(place).unwrap_or_default();
        let reads = |kind: &str, plain: &str, reading: &str| match kind {
            kind if kind == plain => Ok(0),
            kind if kind == reading => Ok(blocks),
            kind => Err(unsupported(path, format!("a {kind}"), FAMILY)),
        };
        let from_the_end = self.up_block_types.len() - 1 - place;
        let level = UnetLevel {
            channels: self.block_out_channels[place],
            layers: self.layers_per_block.at(place).unwrap_or_default(),
            heads: heads.at(place).unwrap_or_default(),
            down_blocks: reads(&self.down_block_types[place], "DownBlock2D", "CrossAttnDownBlock2D")?,
            up_blocks: reads(&self.up_block_types[from_the_end], "UpBlock2D", "CrossAttnUpBlock2D")?,
            blocks,
        };
        let layers = ("layers_per_block", level.layers);
        counts(path, &[layers, ("transformer_layers_per_block", blocks)])?;
        sizes(path, &[("block_out_channels", level.channels), ("attention_head_dim", level.heads)])?;
        divides(path, "norm_num_groups", self.norm_num_groups, level.channels)?;
        divides(path, "attention_head_dim", level.heads, level.channels)?;
        Ok(level)
    }
}

impl VaeConfig {
    pub(super) fn read(path: &Path) -> Result<Self, LoadError> {
        let config: VaeConfig = read(path)?;
        let is_plain = config.up_block_types.iter().all(|kind| kind == "UpDecoderBlock2D");
        let is_shifted =
            config.shift_factor.is_some() || config.latents_mean.as_ref().is_some_and(|mean| !mean.is_null());
        if !is_plain || is_shifted || config.act_fn != "silu" || config.out_channels != 3 {
            let what = "a decoder with other blocks, a shift, another activation or other than 3 channels";
            return Err(unsupported(path, what, FAMILY));
        }
        let levels = config.block_out_channels.len();
        counts(path, &[("block_out_channels", levels), ("layers_per_block", config.layers_per_block)])?;
        if levels > LEVELS_MAX {
            return Err(unsupported(path, format!("a decoder with {levels} levels"), FAMILY));
        }
        for channels in &config.block_out_channels {
            sizes(path, &[("block_out_channels", *channels)])?;
            divides(path, "norm_num_groups", config.norm_num_groups, *channels)?;
        }
        if !(config.scaling_factor.is_finite() && config.scaling_factor > 1e-6) {
            return Err(wrong(path, "scaling_factor is not above 0"));
        }
        Ok(config)
    }

    /// Pixels per latent side.
    pub(super) fn factor(&self) -> usize {
        1 << (self.block_out_channels.len() - 1)
    }
}

impl ClipConfig {
    pub(super) fn read(path: &Path) -> Result<Self, LoadError> {
        let config: ClipConfig = read(path)?;
        let layers = ("num_hidden_layers", config.num_hidden_layers);
        counts(path, &[layers, ("num_attention_heads", config.num_attention_heads)])?;
        let size = [("hidden_size", config.hidden_size), ("intermediate_size", config.intermediate_size)];
        sizes(path, &size)?;
        sizes(path, &[("vocab_size", config.vocab_size)])?;
        divides(path, "num_attention_heads", config.num_attention_heads, config.hidden_size)?;
        if !(2..=1024).contains(&config.max_position_embeddings) {
            return Err(wrong(path, "max_position_embeddings is not from 2 to 1024"));
        }
        if !(config.layer_norm_eps > 0.0 && config.layer_norm_eps < 1.0) {
            return Err(wrong(path, "layer_norm_eps is not between 0 and 1"));
        }
        Ok(config)
    }
}

const FAMILY: &str = "; supported are folders of the Stable Diffusion 1 and 2 family";

pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, LoadError> {
    let Ok(about) = fs::metadata(path) else {
        let what = "configuration".to_owned();
        let hint = "; download the whole folder again".to_owned();
        return Err(LoadError::Missing { path: path.to_owned(), what, hint });
    };
    if about.len() > CONFIG_BYTES_MAX {
        return Err(wrong(path, format!("{} bytes is too large for a configuration", about.len())));
    }
    let bytes = fs::read(path).map_err(|error| wrong(path, error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| wrong(path, error.to_string()))
}

pub(super) fn wrong(path: &Path, detail: impl Into<String>) -> LoadError {
    LoadError::Wrong { path: path.to_owned(), detail: detail.into() }
}

pub(super) fn unsupported(path: &Path, what: impl Into<String>, hint: &str) -> LoadError {
    LoadError::Unsupported { path: path.to_owned(), what: what.into(), hint: hint.to_owned() }
}

fn counts(path: &Path, named: &[(&str, usize)]) -> Result<(), LoadError> {
    bounded(path, named, COUNT_MAX)
}

fn sizes(path: &Path, named: &[(&str, usize)]) -> Result<(), LoadError> {
    bounded(path, named, SIZE_MAX)
}

fn bounded(path: &Path, named: &[(&str, usize)], max: usize) -> Result<(), LoadError> {
    match named.iter().find(|(_, number)| !(1..=max).contains(number)) {
        Some((name, number)) => Err(wrong(path, format!("{name} is {number}, outside 1 to {max}"))),
        None => Ok(()),
    }
}

fn divides(path: &Path, name: &str, divisor: usize, number: usize) -> Result<(), LoadError> {
    if divisor == 0 || !number.is_multiple_of(divisor) {
        return Err(wrong(path, format!("{name} is {divisor}, which does not divide {number}")));
    }
    Ok(())
}

fn one() -> usize {
    1
}
fn three() -> usize {
    3
}
fn thirty_two() -> usize {
    32
}
fn seventy_seven() -> usize {
    77
}
fn two_layers() -> OneOrMany {
    OneOrMany::One(2)
}
fn one_block() -> OneOrMany {
    OneOrMany::One(1)
}
fn eight_heads() -> OneOrMany {
    OneOrMany::One(8)
}
fn yes() -> bool {
    true
}
fn small() -> f64 {
    1e-5
}
fn scaling_factor() -> f64 {
    0.18215
}
fn silu() -> String {
    "silu".to_owned()
}
fn quick_gelu() -> ClipActivation {
    ClipActivation::QuickGelu
}
