//! Runs the same model on a CPU and on a card, and prints answers, speed and the difference between the answers.
//!
//! `cargo run --release -p remuda-models --features cuda --example devices -- PATH [DEVICE ...]`
#![expect(clippy::print_stdout, reason = "a measuring tool prints its results")]

use std::error::Error;
use std::time::{Duration, Instant};

use remuda_models::request::{Chat, ChatMessage, ImagePrompt, Sampling};
use remuda_models::{
    CallOptions, Capability, Device, ModelPool, ModelPoolSettings, ModelRequest, ModelSpec, PartAnswer,
    child, engines,
};

const ROUNDS: usize = 5;
const TOKENS: u32 = 128;
/// CPU threads. Small models are not faster with more.
const THREADS: u32 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (path, devices) = match args.split_first() {
        Some((first, _)) if first == "pool-copy" => return Ok(child::run(&engines())?),
        Some((path, [])) => (path, vec![Device::Cpu, Device::Cuda(0)]),
        Some((path, devices)) => (path, devices.iter().map(|name| name.parse()).collect::<Result<_, _>>()?),
        None => {
            return Err("give the path of a model, and the devices to try it on if not cpu and cuda".into());
        }
    };
    let mut known: Option<PartAnswer> = None;
    for device in devices {
        let spec = ModelSpec { device: Some(device), threads: THREADS, ..ModelSpec::new("it", path) };
        let answer = tried(spec)?;
        if let Some(known) = &known {
            println!("  {}", difference(known, &answer)?);
        }
        known.get_or_insert(answer);
    }
    Ok(())
}

/// One copy with the engine's recommended isolation, asked the same several times.
fn tried(spec: ModelSpec) -> Result<PartAnswer, Box<dyn Error>> {
    let pool = ModelPool::start(ModelPoolSettings::default(), engines());
    let found = pool.add(spec)?;
    let (device, architecture) = (found.device, &found.architecture);
    println!("{device}: {architecture}, {} MiB a copy, by {:?}", found.memory_bytes >> 20, found.isolation);
    let ask = || -> Result<(PartAnswer, Duration), Box<dyn Error>> {
        let began = Instant::now();
        let answer = pool.call("it", question(found.capability)?, CallOptions::default())?.wait()?;
        let part = answer.parts.into_iter().next().ok_or("an answer without parts")?;
        Ok((part, began.elapsed()))
    };
    let (answer, first) = ask()?;
    println!("  loaded, tested and answered in {first:?}");
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let (again, took) = ask()?;
        times.push(took);
        if again != answer {
            println!("  a repeated request got another answer");
        }
    }
    times.sort();
    let median = times[ROUNDS / 2];
    match &answer {
        PartAnswer::Text(text) => {
            let pace = f64::from(text.tokens) / median.as_secs_f64();
            println!("  {} tokens in {median:?}, {pace:.1} a second: {:?}", text.tokens, text.text);
        }
        _ => println!("  answered in {median:?}, of {ROUNDS}"),
    }
    pool.close(Duration::from_secs(5));
    Ok(answer)
}

fn question(capability: Capability) -> Result<ModelRequest, String> {
    match capability {
        Capability::TextToText => {
            let content = "Tell me about wild horses.".to_owned();
            let messages = vec![ChatMessage { role: "user".to_owned(), content }];
            let sampling = Sampling { tokens_max: Some(TOKENS), ..Sampling::default() };
            Ok(ModelRequest::TextToText(Chat { messages, sampling }))
        }
        Capability::TextToImage => Ok(ModelRequest::TextToImage(ImagePrompt {
            prompt: "a rocket on a black background".to_owned(),
            negative_prompt: String::new(),
            size: None,
            steps: Some(25),
            guidance: Some(4.0),
            seed: Some(1),
        })),
        other => Err(format!("{other} has no engine for cards")),
    }
}

fn difference(known: &PartAnswer, answer: &PartAnswer) -> Result<String, Box<dyn Error>> {
    Ok(match (known, answer) {
        (PartAnswer::Text(known), PartAnswer::Text(text)) => {
            let pairs = known.text.chars().zip(text.text.chars());
            let same = pairs.take_while(|(known, answer)| known == answer).count();
            format!("the first {same} of {} letters are the same", known.text.chars().count())
        }
        (PartAnswer::Image(known), PartAnswer::Image(png)) => {
            let [known, drawn] =
                [known, png].map(|file| image::load_from_memory(file).map(|it| it.to_rgb8()));
            let (known, drawn) = (known?.into_raw(), drawn?.into_raw());
            let apart = known.iter().zip(&drawn).map(|(known, drawn)| known.abs_diff(*drawn));
            let other = apart.clone().filter(|levels| *levels > 0).count();
            let (most, count) = (apart.max().unwrap_or(0), known.len());
            format!("{other} of {count} colours differ, the most by {most} of 255 levels")
        }
        _ => "the answers are of different kinds".to_owned(),
    })
}
