//! The formats of the model families in use, written as their templates write them, byte by byte.

use super::{refusal, rendered};

const TALK: [(&str, &str); 4] =
    [("system", "Be brief."), ("user", " Hi <b>\n"), ("assistant", "Hello."), ("user", "2 + 2?")];

fn renders(source: &str, messages: &[(&str, &str)], right: &str) {
    assert_eq!(rendered(source, messages).as_deref(), Ok(right));
}

#[test]
fn chatml_of_a_file() {
    // Not our own text, so it is rendered as any other.
    let source = "{%- for message in messages %}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}";
    renders(
        source,
        &TALK,
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <b>\n<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n",
    );
}

#[test]
fn llama_3() {
    let source = "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";
    renders(
        source,
        &TALK,
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi <b><|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n2 + 2?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    );
}

/// With a namespace, reversed messages, slices, and thoughts that are left out of earlier answers.
#[test]
fn qwen_3() {
    let source = "{%- if tools %}
    {{- '# Tools' }}
{%- endif %}
{%- set ns = namespace(last=messages | length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == 'user' and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}";
    renders(
        source,
        &[("user", "Hi"), ("assistant", "<think>\nhm\n</think>\n\nHello."), ("user", "Bye")],
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
    );
}

/// Another name for the assistant, and an instruction that is part of the first question.
#[test]
fn gemma() {
    let source = "{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = '' -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else '') }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\\n' }}
{%- endif -%}";
    renders(
        source,
        &TALK,
        "<s><start_of_turn>user\nBe brief.\n\nHi <b><end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n<start_of_turn>user\n2 + 2?<end_of_turn>\n<start_of_turn>model\n",
    );
    let reason = refusal(source, &[("user", "one"), ("user", "two")]);
    assert!(reason.ends_with("must alternate user/assistant/user/assistant/..."), "{reason}");
}

#[test]
fn mistral() {
    let source = "{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}{{- bos_token }}{%- for message in loop_messages %}{%- if message['role'] == 'user' %}{%- if loop.last and system_message is defined %}{{- '[INST] ' + system_message + '\\n\\n' + message['content'] + '[/INST]' }}{%- else %}{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}{%- elif message['role'] == 'assistant' %}{{- ' ' + message['content'] | trim + eos_token }}{%- else %}{{- raise_exception('Only user and assistant roles are supported') }}{%- endif %}{%- endfor %}";
    renders(source, &TALK, "<s>[INST]  Hi <b>\n[/INST] Hello.</s>[INST] Be brief.\n\n2 + 2?[/INST]");
}

#[test]
fn long_conversations_render() {
    let source = "{% for message in messages %}[{{ message.role }}]{{ message.content | trim }}{{ eos_token }}{% endfor %}";
    let text = "word ".repeat(200_000);
    let messages = [("user", text.as_str()), ("assistant", text.as_str()), ("user", "so?")];
    let right = format!("[user]{0}</s>[assistant]{0}</s>[user]so?</s>", text.trim());
    renders(source, &messages, &right);
}
