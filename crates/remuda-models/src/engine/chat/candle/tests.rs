use super::super::cpu_llama::CpuLlama;
use super::super::dimensions::Dimensions;
use super::super::generation::LanguageModel;
use super::CandleModel;
use crate::beacon::Beacon;
use crate::engine::gguf::Gguf;
use crate::engine::gguf::sample::{RandomWeights, Sample};
use crate::failure::InferenceError;
use crate::spec::Device;

/// Not a power of two: seven tokens are read in runs of four, two and one.
const PROMPT: [u32; 7] = [256, 104, 258, 108, 111, 32, 116];

/// Builds for cards are tested where there is one.
const DEVICES: &[Device] =
    if cfg!(feature = "cuda") { &[Device::Cpu, Device::Cuda(0)] } else { &[Device::Cpu] };

/// The relative difference between the logits of two engines.
fn apart(left: &[f32], right: &[f32]) -> f32 {
    let size = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|it| it * it).sum::<f32>().sqrt();
    assert_eq!(left.len(), right.len());
    size(&mut left.iter().zip(right).map(|(left, right)| left - right)) / size(&mut right.iter().copied())
}

fn opened(sample: &Sample) -> (Gguf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (Gguf::open(&sample.write(folder.path())).unwrap(), folder)
}

#[test]
fn candle_and_cpu_llama_agree() {
    let beacon = Beacon::default();
    let families = ["llama", "qwen2", "qwen3"];
    for (family, device) in
        families.into_iter().flat_map(|it| DEVICES.iter().map(move |device| (it, *device)))
    {
        let (gguf, _folder) = opened(&Sample::model(family));
        let mut theirs = CandleModel::load(&gguf, family, (device, 0), &beacon).unwrap();
        let dimensions = Dimensions::of(&gguf).unwrap().unwrap();
        let mut ours = CpuLlama::load(&gguf, &dimensions, 1, &beacon).unwrap();
        for _ in 0..2 {
            let off = apart(ours.read(&PROMPT, &beacon).unwrap(), theirs.read(&PROMPT, &beacon).unwrap());
            assert!(off < 0.03, "{family} on {device}: {off}");
            let off = apart(ours.read(&[257], &beacon).unwrap(), theirs.read(&[257], &beacon).unwrap());
            assert!(off < 0.03, "{family} on {device}, one more: {off}");
            assert_eq!((ours.keep_prefix(0), theirs.keep_prefix(0)), (0, 0), "restart from the beginning");
        }
    }
}

#[test]
fn slow_tensor_types_are_converted() {
    // Q4_1: 96 by 64 weights, 20 bytes per 32.
    let mut draw = RandomWeights(5);
    let block = |draw: &mut RandomWeights| {
        let scales = [0.05_f32, -0.3].map(|it| half::f16::from_f32(it).to_le_bytes());
        let quants = (0..16).map(|_| ((draw.draw() * 127.0) as i8).cast_unsigned());
        scales.into_iter().flatten().chain(quants).collect::<Vec<u8>>()
    };
    let bytes = (0..96 * 64 / 32).flat_map(|_| block(&mut draw)).collect();
    let (gguf, _folder) =
        opened(&Sample::model("llama").tensor("blk.0.ffn_down.weight", &[96, 64], 3, bytes));
    let beacon = Beacon::default();
    assert_eq!(super::slow(&gguf, Device::Cpu).len(), 1);
    let mut theirs = CandleModel::load(&gguf, "llama", (Device::Cpu, 0), &beacon).unwrap();
    let dimensions = Dimensions::of(&gguf).unwrap().unwrap();
    let mut ours = CpuLlama::load(&gguf, &dimensions, 1, &beacon).unwrap();
    let off = apart(ours.read(&PROMPT, &beacon).unwrap(), theirs.read(&PROMPT, &beacon).unwrap());
    assert!(off < 0.03, "{off}");
}

#[test]
fn prompt_is_stopped_between_two_runs() {
    let (gguf, _folder) = opened(&Sample::model("llama"));
    let mut theirs = CandleModel::load(&gguf, "llama", (Device::Cpu, 0), &Beacon::default()).unwrap();
    let beacon = Beacon::default();
    beacon.stop();
    assert_eq!(theirs.read(&PROMPT, &beacon).unwrap_err(), InferenceError::Stopped);
    assert_eq!(beacon.steps(), 1);
}
