//! Renders conversations with the chat template of a model's file, in a process that may take little memory and time.
//!
//! ```text
//!  caller's thread: ChatTemplate::render ──RenderJob──▶ child process: limits ─▶ exec again ─▶ minijinja
//!                        ◀── prompt, refusal, or how the process ended ──────────────────────────┘
//! ```
//!
//! A template is a Jinja program from an untrusted file. It gets only the messages, and cannot read files or include
//! others. What bounds it:
//!
//! | what | bound | who enforces it |
//! |---|---|---|
//! | steps, and so loops and recursion | [`jinja`] | minijinja's fuel |
//! | output | [`jinja`] | the writer |
//! | memory | [`RenderLimits`] | the kernel: allocation fails, and the process ends |
//! | processor time, and the wait for it | [`RenderLimits`], [`renderer`] | the kernel; the caller |
//! | how many render at once | [`renderer`] | the caller |
//!
//! Only a process can bound memory: minijinja has no hook where values are joined, thirty steps double a string to a
//! gigabyte, and `'x' * 90000000 ~ 'x' * 90000000 ~ …` needs no step, because constants are computed while the template
//! is compiled. So the template is compiled there too. Rejected: the process of the copy, which would end with the template and take its
//! requests along; a limit for threads, which no kernel has; one process for many conversations, which saves the start
//! (docs/models.md has the figure) and needs supervision of its own.
//!
//! The memory limit is the kernel's limit on data, which only Linux applies to all memory that a process allocates. On
//! other systems steps, output and time still bound a template, and memory only through them.

mod jinja;
mod limits;
mod methods;
mod renderer;
#[cfg(test)]
pub(crate) mod tests;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

pub(crate) use self::limits::{RenderLimits, requested_limits, serve};
use self::renderer::RendererError;
use crate::child_command::ChildCommand;
use crate::request::ChatMessage;

/// The format most small models are trained on, for files without a template.
pub(crate) const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// The longest templates in use, with tool support, have 30 thousand bytes.
const TEMPLATE_BYTES_MAX: usize = 256 << 10;
/// A conversation of a million tokens has about 4 MiB.
const MESSAGES_BYTES_MAX: usize = 16 << 20;

/// What the process that renders is told.
#[derive(Debug, Serialize, Deserialize)]
struct RenderJob<'a> {
    source: Cow<'a, str>,
    begin: Cow<'a, str>,
    end: Cow<'a, str>,
    messages: Cow<'a, [ChatMessage]>,
}

/// What a template itself answers when it yields no prompt.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum TemplateError {
    /// It is no valid template.
    Invalid(String),
    /// It does not accept these messages, or took more steps or output than it may.
    Refused(String),
}

/// Why there is no prompt.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RenderError {
    /// The template or the messages are at fault: it would happen again.
    #[error("{0}")]
    Refused(String),
    /// This machine is: the same call may succeed later.
    #[error("{0}")]
    Unavailable(String),
}

#[derive(Debug)]
pub(crate) struct ChatTemplate {
    /// The file that the template is from, for errors.
    file: String,
    source: String,
    begin: String,
    end: String,
    child: ChildCommand,
}

impl ChatTemplate {
    /// The template of a file, or ChatML; `begin` and `end` are the file's tokens for the ends of a text.
    pub(crate) fn new(
        file: String,
        source: Option<&str>,
        [begin, end]: [String; 2],
        child: ChildCommand,
    ) -> Result<Self, String> {
        let source = source.unwrap_or(CHATML).to_owned();
        match source.len() {
            ..=TEMPLATE_BYTES_MAX => Ok(ChatTemplate { file, source, begin, end, child }),
            long => Err(format!("its chat template has {long} bytes; the limit is {TEMPLATE_BYTES_MAX}")),
        }
    }

    /// Renders the conversation up to the start of the answer.
    pub(crate) fn render(&self, messages: &[ChatMessage]) -> Result<String, RenderError> {
        let asked: usize = messages.iter().map(|message| message.role.len() + message.content.len()).sum();
        if asked > MESSAGES_BYTES_MAX {
            let text = format!("the messages have {asked} bytes; the limit is {MESSAGES_BYTES_MAX}");
            return Err(RenderError::Refused(text));
        }
        let job = RenderJob {
            source: Cow::Borrowed(&self.source),
            begin: Cow::Borrowed(&self.begin),
            end: Cow::Borrowed(&self.end),
            messages: Cow::Borrowed(messages),
        };
        // Our own, which does nothing but concatenate once.
        if self.source == CHATML {
            return jinja::render(&job).map_err(|error| self.refused(error));
        }
        let limits = RenderLimits::for_messages(asked);
        match renderer::render(&self.child, &job, limits) {
            Ok(Ok(prompt)) => Ok(prompt),
            Ok(Err(error)) => Err(self.refused(error)),
            Err(error) => Err(self.stopped(error, limits)),
        }
    }

    /// Without the position in the template, which the caller has not seen.
    fn refused(&self, error: TemplateError) -> RenderError {
        let ChatTemplate { file, .. } = self;
        RenderError::Refused(match error {
            TemplateError::Invalid(detail) => format!("the chat template of {file} is invalid: {detail}"),
            TemplateError::Refused(detail) => {
                format!("the chat template of {file} refuses these messages: {detail}")
            }
        })
    }

    fn stopped(&self, error: RendererError, limits: RenderLimits) -> RenderError {
        let ChatTemplate { file, .. } = self;
        match error {
            RendererError::Memory => RenderError::Refused(format!(
                "the chat template of {file} was stopped: it needs more than {} MiB of memory",
                limits.memory_bytes >> 20
            )),
            RendererError::Time => RenderError::Refused(format!(
                "the chat template of {file} was stopped: it needs more than {} s",
                limits.processor_seconds
            )),
            RendererError::Unavailable(detail) => {
                RenderError::Unavailable(format!("the chat template of {file} was not rendered: {detail}"))
            }
        }
    }
}
