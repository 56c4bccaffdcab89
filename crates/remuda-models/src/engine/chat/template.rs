//! Renders conversations with the chat template in the model's file.
//!
//! Templates are Jinja programs from untrusted files. They get only the messages, a limited number of steps and a
//! limited output; they cannot read files, include others or run forever. Memory is not bounded if a template doubles a
//! variable repeatedly: a model file is trusted that far.

mod methods;

use std::io::{self, Write};
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, context};

use super::super::gguf::Gguf;
use super::vocab::tokens;
use crate::request::ChatMessage;

/// The format most small models are trained on, for files without a template.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Template steps; the longest templates in use take a few hundred per message.
const FUEL: u64 = 2_000_000;
/// The longest templates in use, with tool support, have 30 thousand bytes.
const TEMPLATE_BYTES_MAX: usize = 256 << 10;
/// The output limit of a template, beyond the size of the messages.
const WRITTEN_BYTES_MAX: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct Template {
    source: String,
    begin: String,
    end: String,
}

impl Template {
    /// The error says what is wrong with the file's template.
    pub(super) fn of(gguf: &Gguf) -> Result<Self, String> {
        let source = gguf.text("tokenizer.chat_template").unwrap_or(CHATML).to_owned();
        if source.len() > TEMPLATE_BYTES_MAX {
            return Err(format!(
                "its chat template has {} bytes; the limit is {TEMPLATE_BYTES_MAX}",
                source.len()
            ));
        }
        let token = |which: &str| {
            let number = gguf.integer(&format!("tokenizer.ggml.{which}_token_id"));
            let number = number.and_then(|number| usize::try_from(number).ok());
            let text = tokens(gguf).ok().zip(number).and_then(|(tokens, number)| tokens.get(number));
            text.cloned().unwrap_or_default()
        };
        let template = Template { source, begin: token("bos"), end: token("eos") };
        environment()
            .template_from_str(&template.source)
            .map_err(|error| format!("its chat template: {error:#}"))?;
        Ok(template)
    }

    pub(super) fn is_chatml(gguf: &Gguf) -> bool {
        gguf.text("tokenizer.chat_template").is_none()
    }

    /// Renders the conversation up to the start of the answer.
    pub(super) fn render(&self, messages: &[ChatMessage]) -> Result<String, String> {
        let environment = environment();
        let template = environment.template_from_str(&self.source).map_err(|error| template_error(&error))?;
        let asked: usize = messages.iter().map(|message| message.role.len() + message.content.len()).sum();
        let mut written = BoundedWriter { text: Vec::new(), left: WRITTEN_BYTES_MAX + 2 * asked };
        let message = |message: &ChatMessage| context! { role => message.role.as_str(), content => message.content.as_str() };
        let values = context! {
            messages => messages.iter().map(message).collect::<Vec<Value>>(),
            add_generation_prompt => true,
            bos_token => self.begin.as_str(),
            eos_token => self.end.as_str(),
        };
        template.render_captured_to(values, &mut written).map_err(|error| template_error(&error))?;
        Ok(String::from_utf8_lossy(&written.text).into_owned())
    }
}

/// Configured like `transformers`.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL));
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(methods::call);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: String| methods::date(&format, SystemTime::now()));
    environment.add_filter("tojson", methods::json);
    environment
}

/// Without the position in the template, which the caller has not seen.
fn template_error(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    format!("the model's chat template refuses these messages: {detail}")
}

/// A writer with a size limit.
struct BoundedWriter {
    text: Vec<u8>,
    left: usize,
}

impl Write for BoundedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left =
            self.left.checked_sub(bytes.len()).ok_or_else(|| io::Error::other("its output is too long"))?;
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
