//! EfficientNet-Lite0 as a graph: a stem, sixteen blocks that widen, look around and narrow again, a head, and a vector that
//! a last product tells a thousand things by.

use std::collections::{BTreeMap, HashMap};

use super::onnx::{Attribute, Graph};
use super::pickle::{self, Array};

/// How far each block steps; everything else of it is in the shape of its weights.
const STRIDES: [i64; 16] = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1];
/// What keeps a deviation of nothing from dividing by nothing, as it was trained with.
const EPSILON: f32 = 1e-3;
const SIDE: u64 = 224;
/// How it was trained to see: from −127/128 to 1.
const SIGHT: &str = r#"{"image_mean": [0.498039216, 0.498039216, 0.498039216], "image_std": [0.501960784, 0.501960784, 0.501960784]}
"#;

/// The graph, the names of the things it tells apart, and how it sees.
pub(super) fn convert(weights: &[u8], classes: &[u8], words: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let graph = graph(&pickle::tensors(weights)?)?;
    Ok(vec![graph, labels(classes, words)?.into_bytes(), SIGHT.as_bytes().to_vec()])
}

/// The names, in the order of the classes: a list of identifiers, and a table of what each is called.
fn labels(classes: &[u8], words: &[u8]) -> Result<String, String> {
    let text = |bytes| str::from_utf8(bytes).map_err(|_| "a list in it is no text".to_owned());
    let names: HashMap<_, _> = text(words)?.lines().filter_map(|line| line.split_once('\t')).collect();
    let name =
        |class: &str| names.get(class).map(|name| format!("{name}\n")).ok_or(format!("{class} has no name"));
    text(classes)?.lines().map(name).collect()
}

struct Builder<'a> {
    tensors: &'a BTreeMap<String, Array>,
    graph: Graph,
    steps: usize,
}

fn graph(tensors: &BTreeMap<String, Array>) -> Result<Vec<u8>, String> {
    let mut builder = Builder { tensors, graph: Graph::default(), steps: 0 };
    builder.graph.input("pixel_values", &[3, SIDE, SIDE]);
    builder.graph.output("features", &[1280]);
    builder.graph.output("logits", &[1000]);
    builder.graph.tensor("zero", &[], &[0.0]);
    builder.graph.tensor("six", &[], &[6.0]);
    let mut seen = builder.convolved("pixel_values", "_conv_stem", "_bn0", 2, true)?;
    for (number, stride) in STRIDES.into_iter().enumerate() {
        seen = builder.block(&seen, number, stride)?;
    }
    let seen = builder.convolved(&seen, "_conv_head", "_bn1", 1, true)?;
    builder.graph.node("GlobalAveragePool", &[&seen], "pooled", &[]);
    builder.graph.node("Flatten", &["pooled"], "features", &[]);
    for name in ["_fc.weight", "_fc.bias"] {
        let Array { shape, numbers } = builder.array(name)?;
        builder.graph.tensor(name, shape, numbers);
    }
    let turned = [("transB", Attribute::Number(1)), ("alpha", Attribute::Float(1.0))];
    builder.graph.node("Gemm", &["features", "_fc.weight", "_fc.bias"], "logits", &turned);
    Ok(builder.graph.file("efficientnet-lite0"))
}

impl<'a> Builder<'a> {
    fn array(&self, name: &str) -> Result<&'a Array, String> {
        self.tensors.get(name).ok_or_else(|| format!("there is no tensor called {name} in it"))
    }

    fn name(&mut self) -> String {
        self.steps += 1;
        format!("step{}", self.steps)
    }

    fn block(&mut self, input: &str, number: usize, stride: i64) -> Result<String, String> {
        let of = |part: &str| format!("_blocks.{number}.{part}");
        let mut seen = input.to_owned();
        if self.tensors.contains_key(&of("_expand_conv.weight")) {
            seen = self.convolved(&seen, &of("_expand_conv"), &of("_bn0"), 1, true)?;
        }
        seen = self.convolved(&seen, &of("_depthwise_conv"), &of("_bn1"), stride, true)?;
        let depth = |name: &str, at: usize| {
            let array = self.array(&of(name))?;
            array.shape.get(at).copied().ok_or_else(|| format!("{name} has another shape"))
        };
        let widened = self.tensors.contains_key(&of("_expand_conv.weight"));
        let given =
            if widened { depth("_expand_conv.weight", 1)? } else { depth("_depthwise_conv.weight", 0)? };
        let is_same = stride == 1 && given == depth("_project_conv.weight", 0)?;
        seen = self.convolved(&seen, &of("_project_conv"), &of("_bn2"), 1, false)?;
        if is_same {
            let sum = self.name();
            self.graph.node("Add", &[&seen, input], &sum, &[]);
            return Ok(sum);
        }
        Ok(seen)
    }

    /// A convolution and the normalisation behind it as one; kept between 0 and 6 where that is wanted.
    fn convolved(
        &mut self,
        input: &str,
        conv: &str,
        norm: &str,
        stride: i64,
        kept: bool,
    ) -> Result<String, String> {
        let Array { shape, numbers } = self.array(&format!("{conv}.weight"))?;
        let &[outputs, inputs, side, _] = shape.as_slice() else {
            return Err(format!("{conv} has another shape"));
        };
        let part = |name: &str| self.array(&format!("{norm}.{name}")).map(|array| array.numbers.as_slice());
        let (scale, shift) = (part("weight")?, part("bias")?);
        let (mean, variance) = (part("running_mean")?, part("running_var")?);
        if [scale, shift, mean, variance].iter().any(|part| part.len() != outputs) {
            return Err(format!("{norm} does not fit {conv}"));
        }
        let scales: Vec<f32> = (0..outputs).map(|at| scale[at] / (variance[at] + EPSILON).sqrt()).collect();
        let shifts: Vec<f32> = (0..outputs).map(|at| shift[at] - mean[at] * scales[at]).collect();
        let each = (numbers.len() / outputs.max(1)).max(1);
        let weights: Vec<f32> = numbers
            .chunks(each)
            .zip(&scales)
            .flat_map(|(of, scale)| of.iter().map(move |it| it * scale))
            .collect();
        let (weight, bias, output) = (format!("{conv}.weight"), format!("{conv}.bias"), self.name());
        self.graph.tensor(&weight, shape, &weights);
        self.graph.tensor(&bias, &[outputs], &shifts);
        // As TensorFlow pads: every side here is even where a step is two, and what is odd goes to the right and below.
        let kernel = side as i64;
        let padded = (kernel - stride).max(0);
        let (before, after) = (padded / 2, padded - padded / 2);
        let group = if inputs == 1 && outputs > 1 { outputs as i64 } else { 1 };
        self.graph.node(
            "Conv",
            &[input, &weight, &bias],
            &output,
            &[
                ("kernel_shape", Attribute::Numbers(&[kernel, kernel])),
                ("strides", Attribute::Numbers(&[stride, stride])),
                ("pads", Attribute::Numbers(&[before, before, after, after])),
                ("group", Attribute::Number(group)),
            ],
        );
        if !kept {
            return Ok(output);
        }
        let clipped = self.name();
        self.graph.node("Clip", &[&output, "zero", "six"], &clipped, &[]);
        Ok(clipped)
    }
}
