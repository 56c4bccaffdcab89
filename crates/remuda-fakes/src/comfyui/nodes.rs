//! The node classes: their inputs and outputs. `work` executes them.
//!
//! Enough of the original's classes to run the stock workflow and everything that needs no model, plus test nodes
//! (`Remuda…`) that sleep, fail and send odd output on demand.

pub(super) mod work;

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::files::{Disk, Folder};
use super::image::Image;

/// A value passed between nodes.
#[derive(Clone, Debug)]
pub(super) enum Data {
    Image(Image),
    Latent(Image),
    Mask,
    Model,
    Clip,
    Vae,
    Conditioning,
    /// Nothing downstream runs; the first node that gets it reports the message.
    Blocked(Option<Arc<str>>),
}

/// The type of an input.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    Int,
    Float,
    Text,
    Bool,
    Choice(Vec<String>),
    /// The same as newer classes declare it: the list is in the configuration.
    Options(Vec<String>),
    /// A file in the input folder; checked at submission, not against a list.
    File,
    /// Names of faults, separated by commas, or `none`.
    Fault,
    /// An output of another node.
    Link(&'static str),
}

#[derive(Clone, Debug)]
pub(super) struct Input {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) config: Value,
}

impl Input {
    /// The name of the type, as used in messages.
    pub(super) fn type_name(&self) -> String {
        match &self.kind {
            Kind::Int => "INT".to_owned(),
            Kind::Float => "FLOAT".to_owned(),
            Kind::Text | Kind::Fault => "STRING".to_owned(),
            Kind::Bool => "BOOLEAN".to_owned(),
            Kind::Choice(choices) => python_list(choices),
            Kind::Options(_) | Kind::File => "COMBO".to_owned(),
            Kind::Link(name) => (*name).to_owned(),
        }
    }

    /// `[type, {config}]`, as in errors and object_info.
    pub(super) fn to_json(&self) -> Value {
        match &self.kind {
            Kind::Choice(choices) => json!([choices, self.config]),
            Kind::Options(choices) => json!(["COMBO", {"multiselect": false, "options": choices}]),
            Kind::File => json!([[], self.config]),
            _ => json!([self.type_name(), self.config]),
        }
    }
}

/// Python's `str(list)`.
pub(super) fn python_list(list: &[String]) -> String {
    let quoted: Vec<String> = list.iter().map(|item| format!("'{item}'")).collect();
    format!("[{}]", quoted.join(", "))
}

#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) name: &'static str,
    title: &'static str,
    category: &'static str,
    pub(super) inputs: Vec<Input>,
    pub(super) results: &'static [&'static str],
    pub(super) is_output: bool,
    pub(super) is_never_cached: bool,
    has_hidden: bool,
}

fn class(name: &'static str, category: &'static str, results: &'static [&'static str]) -> Class {
    Class {
        name,
        title: name,
        category,
        inputs: Vec::new(),
        results,
        is_output: false,
        is_never_cached: false,
        has_hidden: false,
    }
}

impl Class {
    fn titled(mut self, title: &'static str) -> Class {
        self.title = title;
        self
    }

    fn takes(mut self, name: &'static str, kind: Kind, config: Value) -> Class {
        self.inputs.push(Input { name, kind, config });
        self
    }

    fn linked(self, name: &'static str, kind: &'static str) -> Class {
        self.takes(name, Kind::Link(kind), json!({}))
    }

    fn size(self, default: u32, least: u32) -> Class {
        let config = json!({"default": default, "min": least, "max": 16384, "step": 1});
        self.takes("width", Kind::Int, config.clone()).takes("height", Kind::Int, config)
    }

    fn output(mut self) -> Class {
        self.is_output = true;
        self
    }

    fn hidden(mut self) -> Class {
        self.has_hidden = true;
        self
    }

    fn never_cached(mut self) -> Class {
        self.is_never_cached = true;
        self
    }

    /// As in `/object_info`: keys in the order in which they were declared.
    fn to_text(&self, disk: &Disk) -> String {
        let required: Vec<(&str, String)> = self
            .inputs
            .iter()
            .map(|input| {
                let told = match input.kind {
                    Kind::File => json!([disk.names(Folder::Input), input.config]),
                    Kind::Options(_) => input.to_json(),
                    // The original omits an empty configuration.
                    _ if input.config == json!({}) => json!([input.to_json()[0]]),
                    _ => input.to_json(),
                };
                (input.name, told.to_string())
            })
            .collect();
        let order: Vec<&str> = self.inputs.iter().map(|input| input.name).collect();
        let mut input = vec![("required", ordered(&required))];
        let mut input_order = vec![("required", json!(order).to_string())];
        if self.has_hidden {
            let hidden = json!({"prompt": "PROMPT", "extra_pnginfo": "EXTRA_PNGINFO"});
            input.push(("hidden", hidden.to_string()));
            input_order.push(("hidden", json!(["prompt", "extra_pnginfo"]).to_string()));
        }
        let module = if self.name.starts_with("Remuda") { "custom_nodes.remuda" } else { "nodes" };
        ordered(&[
            ("input", ordered(&input)),
            ("input_order", ordered(&input_order)),
            ("output", json!(self.results).to_string()),
            ("output_is_list", json!(vec![false; self.results.len()]).to_string()),
            ("output_name", json!(self.results).to_string()),
            ("name", json!(self.name).to_string()),
            ("display_name", json!(self.title).to_string()),
            ("description", json!("").to_string()),
            ("python_module", json!(module).to_string()),
            ("category", json!(self.category).to_string()),
            ("output_node", self.is_output.to_string()),
        ])
    }
}

/// An object in this order, written as Python does.
fn ordered(members: &[(&str, String)]) -> String {
    let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    format!("{{{}}}", members.join(", "))
}

/// All classes.
#[derive(Debug)]
pub(super) struct Catalogue {
    classes: Vec<Class>,
    indexes: HashMap<&'static str, usize>,
}

impl Catalogue {
    pub(super) fn new(models: &[String]) -> Catalogue {
        let classes: Vec<Class> = pictures().into_iter().chain(diffusion(models)).chain(tests()).collect();
        let indexes = classes.iter().enumerate().map(|(at, class)| (class.name, at)).collect();
        Catalogue { classes, indexes }
    }

    pub(super) fn class(&self, name: &str) -> Option<&Class> {
        self.classes.get(*self.indexes.get(name)?)
    }

    /// One class, or all of them, as JSON.
    pub(super) fn to_text(&self, only: Option<&str>, disk: &Disk) -> String {
        let told = self.classes.iter().filter(|class| only.is_none_or(|name| name == class.name));
        let told: Vec<_> = told.map(|class| (class.name, class.to_text(disk))).collect();
        ordered(&told)
    }
}

fn pictures() -> Vec<Class> {
    let images = json!({"tooltip": "The images to save."});
    let prefix = json!({"default": "ComfyUI", "tooltip": "The prefix for the file to save. This may include formatting information such as %date:yyyy-MM-dd% or %Empty Latent Image.width% to include values from nodes."});
    vec![
        class("EmptyImage", "image", &["IMAGE"])
            .size(512, 1)
            .takes("batch_size", Kind::Int, json!({"default": 1, "min": 1, "max": 4096}))
            .takes(
                "color",
                Kind::Int,
                json!({"default": 0, "min": 0, "max": 0xff_ffff, "step": 1, "display": "color"}),
            ),
        class("ImageInvert", "image", &["IMAGE"]).titled("Invert Image").linked("image", "IMAGE"),
        class("ImageScale", "image/upscaling", &["IMAGE"])
            .titled("Upscale Image")
            .linked("image", "IMAGE")
            .takes("upscale_method", words("nearest-exact bilinear area bicubic lanczos"), json!({}))
            .size(512, 0)
            .takes("crop", words("disabled center"), json!({})),
        class("ImageBlur", "image/postprocessing", &["IMAGE"])
            .linked("image", "IMAGE")
            .takes("blur_radius", Kind::Int, json!({"default": 1, "min": 1, "max": 31, "step": 1}))
            .takes("sigma", Kind::Float, json!({"default": 1.0, "min": 0.1, "max": 10.0, "step": 0.1})),
        class("ImageBlend", "image/postprocessing", &["IMAGE"])
            .linked("image1", "IMAGE")
            .linked("image2", "IMAGE")
            .takes("blend_factor", Kind::Float, json!({"default": 0.5, "min": 0.0, "max": 1.0, "step": 0.01}))
            .takes("blend_mode", Kind::Options(list(BLEND_MODES)), json!({})),
        class("SaveImage", "image", &[])
            .titled("Save Image")
            .takes("images", Kind::Link("IMAGE"), images)
            .takes("filename_prefix", Kind::Text, prefix)
            .output()
            .hidden(),
        class("PreviewImage", "image", &[])
            .titled("Preview Image")
            .linked("images", "IMAGE")
            .output()
            .hidden(),
        class("LoadImage", "image", &["IMAGE", "MASK"]).titled("Load Image").takes(
            "image",
            Kind::File,
            json!({"image_upload": true}),
        ),
        class("SaveImageWebsocket", "api/image", &[]).linked("images", "IMAGE").output().never_cached(),
    ]
}

/// As the recorded server lists them.
const SAMPLERS: &str = "euler euler_cfg_pp euler_ancestral euler_ancestral_cfg_pp heun heunpp2 exp_heun_2_x0 \
    exp_heun_2_x0_sde dpm_2 dpm_2_ancestral lms dpm_fast dpm_adaptive dpmpp_2s_ancestral dpmpp_2s_ancestral_cfg_pp \
    dpmpp_sde dpmpp_sde_gpu dpmpp_2m dpmpp_2m_cfg_pp dpmpp_2m_sde dpmpp_2m_sde_gpu dpmpp_2m_sde_heun \
    dpmpp_2m_sde_heun_gpu dpmpp_3m_sde dpmpp_3m_sde_gpu ddpm lcm ipndm ipndm_v deis res_multistep \
    res_multistep_cfg_pp res_multistep_ancestral res_multistep_ancestral_cfg_pp gradient_estimation \
    gradient_estimation_cfg_pp er_sde seeds_2 seeds_3 sa_solver sa_solver_pece ddim uni_pc uni_pc_bh2";
const SCHEDULERS: &str =
    "simple sgm_uniform karras exponential ddim_uniform beta normal linear_quadratic kl_optimal";

pub(super) const BLEND_MODES: &str = "normal multiply screen overlay soft_light difference";

fn words(words: &str) -> Kind {
    Kind::Choice(list(words))
}

fn list(words: &str) -> Vec<String> {
    words.split_whitespace().map(str::to_owned).collect()
}

fn diffusion(models: &[String]) -> Vec<Class> {
    let name = json!({"tooltip": "The name of the checkpoint (model) to load."});
    let seed = json!({"default": 0, "min": 0, "max": u64::MAX, "control_after_generate": true, "tooltip": "The random seed used for creating the noise."});
    vec![
        class("CheckpointLoaderSimple", "loaders", &["MODEL", "CLIP", "VAE"])
            .titled("Load Checkpoint")
            .takes("ckpt_name", Kind::Choice(models.to_vec()), name),
        class("CLIPTextEncode", "conditioning", &["CONDITIONING"])
            .titled("CLIP Text Encode (Prompt)")
            .takes("text", Kind::Text, json!({"multiline": true, "dynamicPrompts": true}))
            .linked("clip", "CLIP"),
        class("EmptyLatentImage", "latent", &["LATENT"]).titled("Empty Latent Image").size(512, 16).takes(
            "batch_size",
            Kind::Int,
            json!({"default": 1, "min": 1, "max": 4096}),
        ),
        class("KSampler", "sampling", &["LATENT"])
            .linked("model", "MODEL")
            .takes("seed", Kind::Int, seed)
            .takes("steps", Kind::Int, json!({"default": 20, "min": 1, "max": 10000}))
            .takes(
                "cfg",
                Kind::Float,
                json!({"default": 8.0, "min": 0.0, "max": 100.0, "step": 0.1, "round": 0.01}),
            )
            .takes("sampler_name", words(SAMPLERS), json!({}))
            .takes("scheduler", words(SCHEDULERS), json!({}))
            .linked("positive", "CONDITIONING")
            .linked("negative", "CONDITIONING")
            .linked("latent_image", "LATENT")
            .takes("denoise", Kind::Float, json!({"default": 1.0, "min": 0.0, "max": 1.0, "step": 0.01})),
        class("VAEDecode", "latent", &["IMAGE"])
            .titled("VAE Decode")
            .linked("samples", "LATENT")
            .linked("vae", "VAE"),
    ]
}

fn tests() -> Vec<Class> {
    let seconds = || json!({"default": 1.0, "min": 0.0, "max": 3600.0, "step": 0.001});
    vec![
        class("RemudaSleep", "remuda", &["IMAGE"])
            .linked("image", "IMAGE")
            .takes("seconds", Kind::Float, seconds())
            .takes("steps", Kind::Int, json!({"default": 10, "min": 1, "max": 10000}))
            .takes("preview", Kind::Bool, json!({"default": false})),
        class("RemudaHold", "remuda", &["IMAGE"]).linked("image", "IMAGE").takes(
            "seconds",
            Kind::Float,
            seconds(),
        ),
        class("RemudaFail", "remuda", &["IMAGE"]).linked("image", "IMAGE").takes(
            "kind",
            words("error oom huge cuda disk exit crash"),
            json!({}),
        ),
        class("RemudaText", "remuda", &[]).takes("text", Kind::Text, json!({"default": ""})).output(),
        class("RemudaNan", "remuda", &[]).output(),
        class("RemudaBlocker", "remuda", &["IMAGE"]).linked("image", "IMAGE").takes(
            "message",
            Kind::Text,
            json!({"default": "blocked on request"}),
        ),
        class("RemudaSilentBlocker", "remuda", &["IMAGE"]).linked("image", "IMAGE"),
        class("RemudaProgressText", "remuda", &["IMAGE"]).linked("image", "IMAGE").takes(
            "text",
            Kind::Text,
            json!({"default": ""}),
        ),
        class("RemudaFault", "remuda", &["IMAGE"])
            .linked("image", "IMAGE")
            .takes("fault", Kind::Fault, json!({"default": "none"}))
            .never_cached(),
    ]
}
