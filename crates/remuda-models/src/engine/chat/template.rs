//! The chat template in a GGUF file, with the tokens that it writes at the ends of a text.

use super::super::gguf::Gguf;
use super::vocab::tokens;
use crate::chat_template::ChatTemplate;
use crate::child_command::ChildCommand;

const KEY: &str = "tokenizer.chat_template";

/// The error says what is wrong with the file's template. It is compiled when it is first rendered.
pub(super) fn chat_template(gguf: &Gguf, child: &ChildCommand) -> Result<ChatTemplate, String> {
    let token = |which: &str| {
        let number = gguf.integer(&format!("tokenizer.ggml.{which}_token_id"));
        let number = number.and_then(|number| usize::try_from(number).ok());
        let text = tokens(gguf).ok().zip(number).and_then(|(tokens, number)| tokens.get(number));
        text.cloned().unwrap_or_default()
    };
    // Callers see it in errors: the name, and not where this machine keeps it.
    let file = gguf.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    ChatTemplate::new(file, gguf.text(KEY), ["bos", "eos"].map(token), child.clone())
}

/// Whether the file has no template, so that ChatML is used.
pub(super) fn is_chatml(gguf: &Gguf) -> bool {
    gguf.text(KEY).is_none()
}
