//! Words a second: what a small language model says, on one core.

use std::path::Path;

use anyhow::{Context as _, bail};
use remuda_models::request::{Chat, ChatMessage, Sampling};
use remuda_models::{
    CallOptions, ModelPool, ModelPoolSettings, ModelRequest, ModelSpec, PartAnswer, engines,
};

use super::cpu_time::median;
use super::supervision::{self, Used};
use crate::figures::Figures;

const ROUNDS: usize = 3;
const TOKENS: u32 = 128;
/// What llama.cpp says of the same weights in eight bits on one core of a Zen 4 server; the aim is 75 there.
const NOTE: &str = "on a Zen 4 core llama.cpp says 109 and 75 are wanted";

pub(crate) async fn measure(table: &mut Figures, model: &Path) -> anyhow::Result<()> {
    let pool = ModelPool::start(ModelPoolSettings::default(), engines());
    pool.add(ModelSpec::new("chat", model))?;
    print_line(&pool, 4).await?;
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let used = Used::by(&pool)?;
        let said = print_line(&pool, TOKENS).await?;
        rates.push(f64::from(said) / used.since(&pool)?.as_secs_f64());
    }
    table.add("chat: smollm2-135m, 1 thread", median(rates), "tokens/CPU s", NOTE.to_owned());
    supervision::end(&pool);
    Ok(())
}

async fn print_line(pool: &ModelPool, tokens: u32) -> anyhow::Result<u32> {
    let content = "Tell me everything you know about horses, at length.".to_owned();
    let messages = vec![ChatMessage { role: "user".to_owned(), content }];
    let sampling = Sampling { tokens_max: Some(tokens), ..Sampling::default() };
    let request = ModelRequest::TextToText(Chat { messages, sampling });
    let answer = pool.call("chat", request, CallOptions::default())?.answer().await?;
    match answer.parts.first().context("no answer")? {
        PartAnswer::Text(generated) => Ok(generated.tokens),
        other => bail!("a conversation was answered with {other:?}"),
    }
}
