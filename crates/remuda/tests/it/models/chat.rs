//! A language model on real weights. What it is held to was said by llama.cpp (2026.10, one thread, greedy) on the same
//! file: how many tokens each question is, and how the answer begins, up to where the rounding of eight bits tips the
//! balance between two words.

use std::path::Path;

use remuda_models::request::{Chat, ChatMessage, FinishReason, GeneratedText, Sampling};
use remuda_models::{
    AnswerUpdate, CallOptions, ChildCommand, ModelAnswer, ModelError, ModelPool, ModelPoolSettings,
    ModelRequest, ModelSpec, PartAnswer, engine,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Known {
    question: String,
    tokens: u64,
    begins: String,
    /// It is the whole answer.
    ends: bool,
}

fn served() -> Option<ModelPool> {
    let folder = remuda_testkit::model("smollm2-135m")?;
    // The program renders the chat template; this one does not know how.
    let child =
        ChildCommand { program: Some(env!("CARGO_BIN_EXE_remuda").into()), ..ChildCommand::default() };
    let pool = ModelPool::start(ModelPoolSettings::default(), engine::engines_of(child));
    let found = pool.add(ModelSpec::new("it", folder)).unwrap();
    assert_eq!(found.engine, "gguf");
    assert!(found.architecture.starts_with("llama, 134 million weights, Q4_1"), "{}", found.architecture);
    Some(pool)
}

fn question(text: &str, sampling: Sampling) -> ModelRequest {
    let messages = vec![ChatMessage { role: "user".to_owned(), content: text.to_owned() }];
    ModelRequest::TextToText(Chat { messages, sampling })
}

fn up_to(tokens: u32) -> Sampling {
    Sampling { tokens_max: Some(tokens), ..Sampling::default() }
}

fn text(answer: ModelAnswer) -> GeneratedText {
    match answer.parts.into_iter().next() {
        Some(PartAnswer::Text(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn language_model_matches_llama_cpp() {
    let Some(pool) = served() else { return };
    let known = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/models/chat/answers.json");
    let known: Vec<Known> = serde_json::from_slice(&std::fs::read(known).unwrap()).unwrap();
    for known in known {
        let asked = pool.call("it", question(&known.question, up_to(48)), CallOptions::default()).unwrap();
        let answer = asked.wait().unwrap();
        assert_eq!(answer.prompt_tokens, known.tokens, "{}", known.question);
        let said = text(answer);
        assert!(said.text.starts_with(&known.begins), "{}: {}", known.question, said.text);
        if known.ends {
            assert_eq!((said.text.as_str(), said.finish), (known.begins.as_str(), FinishReason::Stop));
        }
    }
}

#[tokio::test]
async fn answer_streams_and_honours_stop() {
    let Some(pool) = served() else { return };
    let sampling = Sampling { stop: vec!["spacetime".to_owned()], ..up_to(64) };
    let mut ticket = pool.call("it", question("What is gravity?", sampling), CallOptions::default()).unwrap();
    let mut pieces = Vec::new();
    while let Some(piece) = ticket.next_update().await {
        if let AnswerUpdate::Text(piece) = piece {
            pieces.push(piece);
        }
    }
    let whole = text(ticket.answer().await.unwrap());
    assert_eq!(whole.text, "Gravity is a fundamental concept in physics that describes the curvature of ");
    assert_eq!((pieces.concat(), whole.finish), (whole.text, FinishReason::Stop));
    assert!(pieces.len() > 8, "{pieces:?}");
}

#[test]
fn too_long_prompt_is_refused_with_both_numbers() {
    let Some(pool) = served() else { return };
    let told = pool.call("it", question(&"horse ".repeat(9000), up_to(8)), CallOptions::default());
    let Err(ModelError::Input(told)) = told else { panic!("{told:?}") };
    assert!(told.contains("90") && told.contains("8191 fit"), "{told}");
}
