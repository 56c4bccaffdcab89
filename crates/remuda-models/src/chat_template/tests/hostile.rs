//! Templates that would take all memory or time end soon, say so, and harm nothing else.

use std::time::{Duration, Instant};

use super::{refusal, rendered, template};
use crate::chat_template::RenderError;

/// Several times what the limits allow on an idle machine: the caller's own wait plus the start of a process.
const LONGEST: Duration = Duration::from_secs(15);

fn is_bounded(source: &str, reasons: &[&str]) {
    let began = Instant::now();
    let reason = refusal(source, &[("user", "hi")]);
    assert!(began.elapsed() < LONGEST, "{source}: {:?}", began.elapsed());
    assert!(reason.contains("the chat template of model.gguf"), "{reason}");
    assert!(reasons.iter().any(|known| reason.contains(known)), "{source}: {reason}");
}

const MEMORY: &str = "MiB of memory";
const TIME: &str = "needs more than 2 s";

/// Faults: T2.
#[test]
fn doubling_ends_at_the_memory_limit() {
    let double = |step: &str| {
        format!(
            "{{% set n = namespace(x='0123456789abcdef') %}}{{% for i in range(40) %}}{{% set n.x = {step} %}}{{% endfor %}}{{{{ n.x | length }}}}"
        )
    };
    for step in ["n.x ~ n.x", "n.x + n.x", "[n.x, n.x] | join", "'%s%s' | format(n.x, n.x)"] {
        is_bounded(&double(step), &[MEMORY]);
    }
    // minijinja itself bounds one multiplication to 100 MB.
    is_bounded(&double("n.x * 2"), &[MEMORY, "repeated string is too large"]);
    let replaced = double("n.x.replace('0', '00') | replace('a', 'aaaaaaaa')");
    is_bounded(&replaced, &[MEMORY, TIME]);
    let lists = "{% set n = namespace(x=[1, 2]) %}{% for i in range(60) %}{% set n.x = (n.x + n.x) | list %}{% endfor %}";
    is_bounded(lists, &[MEMORY, TIME]);
}

/// Without a step of the program: these are computed while the template is compiled.
#[test]
fn large_constants_end_at_the_memory_limit() {
    let terms = vec!["'x' * 90000000"; 20].join(" ~ ");
    is_bounded(&format!("{{{{ ({terms}) | length }}}}"), &[MEMORY]);
    is_bounded("{{ 'x' * 1000000000000 }}", &["repeated string is too large"]);
}

#[test]
fn endless_templates_are_stopped() {
    let nested = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}";
    let long = "{% for a in range(90000) %}{{ 'x' * 1000 }}{% endfor %}";
    let recursive = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    let twice = "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}";
    let included = "{% include '/etc/passwd' %}";
    let slow = "{% set x = 'x' * 4000000 %}{% for a in range(100000) %}{% set b = ('xy' in x) or ('yx' in x) %}{% endfor %}";
    for source in [nested, long, recursive, twice, included, slow] {
        is_bounded(source, &["refuses these messages", TIME, MEMORY]);
    }
}

/// What the limit leaves is enough: the doubled text has 8 MiB, and the limit is not met.
#[test]
fn moderate_memory_is_granted() {
    let source = "{% set n = namespace(x='01234567') %}{% for i in range(20) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x | length }}";
    assert_eq!(rendered(source, &[("user", "hi")]).as_deref(), Ok("8388608"));
}

/// A harmless conversation succeeds while hostile ones take every place, and so does the next one of the same template.
#[test]
fn other_callers_are_served_meanwhile() {
    let hostile = "{% if messages[0].content == 'grow' %}{% set n = namespace(x='ab') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}{% endif %}[{{ messages[0].content }}]";
    let template = template(hostile);
    let ask = |text: &str| template.render(&[super::message(&("user", text))]);
    std::thread::scope(|scope| {
        let hostile: Vec<_> = (0..6).map(|_| scope.spawn(|| ask("grow"))).collect();
        assert_eq!(ask("hello").as_deref(), Ok("[hello]"));
        for outcome in hostile {
            let outcome = outcome.join().unwrap();
            assert!(
                matches!(&outcome, Err(RenderError::Refused(reason)) if reason.contains(MEMORY)),
                "{outcome:?}"
            );
        }
    });
    assert_eq!(ask("hello").as_deref(), Ok("[hello]"));
}
