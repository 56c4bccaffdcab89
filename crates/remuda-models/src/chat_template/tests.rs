//! Templates that models in use have, and templates that mean harm. A process of these tests renders them, with the same
//! limits as everywhere.

mod hostile;
mod in_use;

use std::ffi::OsString;
use std::time::{Duration, SystemTime};

use super::{CHATML, ChatTemplate, RenderError, methods, requested_limits, serve};
use crate::child_command::ChildCommand;
use crate::request::ChatMessage;

/// Starts this test program as a process that renders.
pub(crate) fn test_child() -> ChildCommand {
    let args = ["--exact", "chat_template::tests::process_that_renders", "--nocapture"].map(OsString::from);
    ChildCommand { args: args.to_vec(), ..ChildCommand::default() }
}

/// Run as a test it has nothing to do.
#[test]
fn process_that_renders() {
    if let Some(limits) = requested_limits() {
        serve(limits).unwrap();
    }
}

fn message((role, content): &(&str, &str)) -> ChatMessage {
    ChatMessage { role: (*role).to_owned(), content: (*content).to_owned() }
}

fn template(source: &str) -> ChatTemplate {
    let ends = ["<s>", "</s>"].map(str::to_owned);
    ChatTemplate::new("model.gguf".to_owned(), Some(source), ends, test_child()).unwrap()
}

fn rendered(source: &str, messages: &[(&str, &str)]) -> Result<String, RenderError> {
    template(source).render(&messages.iter().map(message).collect::<Vec<_>>())
}

/// What the caller is told when the template is at fault.
fn refusal(source: &str, messages: &[(&str, &str)]) -> String {
    match rendered(source, messages) {
        Err(RenderError::Refused(reason)) => reason,
        other => panic!("{source}: {other:?}"),
    }
}

#[test]
fn conversation_is_rendered_in_the_trained_format() {
    let output = rendered(CHATML, &[("system", "Be brief."), ("user", "Hi <b>")]);
    let right = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <b><|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(output.as_deref(), Ok(right), "nothing is escaped");
}

#[test]
fn templates_may_call_python_methods() {
    let source = "{{ bos_token }}{%- for message in messages -%}
        {%- if loop.first and message.role != 'user' -%}{{ raise_exception('the user speaks first') }}{%- endif -%}
        [{{ message['content'].strip() | upper }}]{{ message.get('name', 'none') }}
        {%- if 'x' in message.content %}{% continue %}{% endif -%}
        {{ message.content.split(' ')[-1] }}{{ message.items() | length }}{{ {'a': '<'} | tojson }}
    {%- endfor -%}{{ eos_token if not tools else '' }}";
    let output = rendered(source, &[("user", " hey you"), ("user", "x")]);
    assert_eq!(output.as_deref(), Ok("<s>[HEY YOU]noneyou2{\"a\":\"<\"}[X]none</s>"));
    let output = refusal(source, &[("assistant", "hey")]);
    assert!(output.ends_with("the user speaks first"), "{output}");
}

#[test]
fn date_follows_its_format() {
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_210_096);
    assert_eq!(
        methods::date("%d %b %Y, %A %H:%M:%S %B %m %q%", then),
        "29 Feb 2024, Thursday 12:34:56 February 02 %q%"
    );
}

#[test]
fn long_templates_and_messages_are_refused_before_a_process_is_started() {
    let ends = || ["", ""].map(str::to_owned);
    let none = ChildCommand { program: Some("/nonexistent".into()), ..ChildCommand::default() };
    let long = "x".repeat((256 << 10) + 1);
    let error = ChatTemplate::new("m.gguf".to_owned(), Some(&long), ends(), none.clone()).unwrap_err();
    assert!(error.contains("262145 bytes"), "{error}");
    let template = ChatTemplate::new("m.gguf".to_owned(), Some("short"), ends(), none).unwrap();
    let error = template.render(&[message(&("user", &"x".repeat(17 << 20)))]).unwrap_err();
    assert!(
        matches!(&error, RenderError::Refused(reason) if reason.contains("the limit is 16777216")),
        "{error}"
    );
    let error = template.render(&[message(&("user", "x"))]).unwrap_err();
    assert!(
        matches!(&error, RenderError::Unavailable(reason) if reason.contains("cannot be started")),
        "{error}"
    );
}
