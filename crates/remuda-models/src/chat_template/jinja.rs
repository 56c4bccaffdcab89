//! A template as minijinja renders it, configured like `transformers`; the caller bounds memory and time.

use std::io::{self, Write};
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, context};

use super::{RenderJob, TemplateError, methods};
use crate::request::ChatMessage;

/// Template steps; the longest templates in use take a few hundred per message.
const FUEL: u64 = 2_000_000;
/// The output limit of a template, beyond twice the size of the messages.
const WRITTEN_BYTES_MAX: usize = 4 << 20;

pub(super) fn render(job: &RenderJob<'_>) -> Result<String, TemplateError> {
    let environment = environment();
    let template = environment
        .template_from_str(&job.source)
        .map_err(|error| TemplateError::Invalid(format!("{error:#}")))?;
    let asked: usize = job.messages.iter().map(|message| message.role.len() + message.content.len()).sum();
    let mut written = BoundedWriter { text: Vec::new(), left: WRITTEN_BYTES_MAX + 2 * asked };
    let message = |message: &ChatMessage| context! { role => message.role.as_str(), content => message.content.as_str() };
    let values = context! {
        messages => job.messages.iter().map(message).collect::<Vec<Value>>(),
        add_generation_prompt => true,
        bos_token => &*job.begin,
        eos_token => &*job.end,
    };
    template.render_captured_to(values, &mut written).map_err(|error| refused(&error))?;
    Ok(String::from_utf8_lossy(&written.text).into_owned())
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL));
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(methods::call);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: String| methods::date(&format, SystemTime::now()));
    environment.add_filter("tojson", methods::json);
    environment
}

fn refused(error: &Error) -> TemplateError {
    TemplateError::Refused(error.detail().map_or_else(|| error.kind().to_string(), str::to_owned))
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
