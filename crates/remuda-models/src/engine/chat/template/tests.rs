use std::time::{Duration, SystemTime};

use super::{CHATML, Template, methods};
use crate::request::ChatMessage;

fn rendered(source: &str, messages: &[(&str, &str)]) -> Result<String, String> {
    let template = Template { source: source.to_owned(), begin: "<s>".to_owned(), end: "</s>".to_owned() };
    let message = |(role, content): &(&str, &str)| ChatMessage {
        role: (*role).to_owned(),
        content: (*content).to_owned(),
    };
    template.render(&messages.iter().map(message).collect::<Vec<_>>())
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
    let output = rendered(source, &[("assistant", "hey")]).unwrap_err();
    assert!(output.ends_with("the user speaks first"), "{output}");
}

#[test]
fn endless_templates_are_stopped() {
    let deep = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}";
    let long = "{% for a in range(90000) %}{{ 'x' * 1000 }}{% endfor %}";
    let itself = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    let included = "{% include '/etc/passwd' %}";
    for source in [deep, long, itself, included] {
        assert!(rendered(source, &[("user", "hi")]).is_err(), "{source}");
    }
}

#[test]
fn date_follows_its_format() {
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_210_096);
    assert_eq!(
        methods::date("%d %b %Y, %A %H:%M:%S %B %m %q%", then),
        "29 Feb 2024, Thursday 12:34:56 February 02 %q%"
    );
}
