//! Writes `docs/metrics.md` from the table, and checks that what refers to metrics (the Grafana dashboard, the alert rules)
//! names only metrics and labels that exist.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

use super::table::{GROUPS, Metric, MetricKind, all};

const HEAD: &str = r#"# Metrics

*Generated from `crates/remuda-server/src/metrics/table.rs`; edit the table, then run
`REMUDA_WRITE_DOCS=1 cargo test -p remuda-server metrics::document`.*

`GET /metrics` answers in the text format of Prometheus. Scrape it every 15 seconds:

```yaml
scrape_configs:
  - job_name: remuda
    static_configs:
      - targets: ["plane.example.org:8288"]
    scheme: https
    authorization:
      credentials_file: /etc/prometheus/remuda-token
```

Create that token with `remuda token create --role metrics --name prometheus`. It can read this page and nothing else; an
admin token works too. On loopback you need no token until you create one.

- [grafana/remuda.json](grafana/remuda.json) is a dashboard: import it in Grafana and choose your Prometheus.
- [prometheus/alerts.yml](prometheus/alerts.yml) has alert rules: name the file under `rule_files`. Remuda can also alert
  by itself, without Prometheus: see [alerts.md](alerts.md).

The names below are stable: a metric is not renamed and does not lose a label without a major version. New metrics and new
label values may appear at any time.

Counters start at zero when the plane starts, and those of the plane itself also when it had to reload its state after a
failed commit; `rate()` and `increase()` allow for both. No label has a value that a client, a tenant or a worker can choose:
`fleet` is a name from your configuration. To see single jobs, tenants and workers, use the API or the events.

A scrape costs some milliseconds: counts are kept while jobs change, and no scrape walks over all jobs.
"#;

fn document() -> String {
    let mut text = HEAD.to_owned();
    for group in GROUPS {
        writeln!(text, "\n## {}\n\n| metric | type | labels | meaning |\n|---|---|---|---|", group.title)
            .unwrap();
        for metric in group.metrics {
            let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            let (name, kind) = (metric.name, metric.kind.as_str());
            writeln!(text, "| `{name}` | {kind} | {} | {} |", labels.join(", "), metric.help).unwrap();
        }
    }
    text
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// The command that writes the document; the test only compares.
const WRITE: &str = "REMUDA_WRITE_DOCS=1 cargo test -p remuda-server metrics::document";

#[test]
fn document_matches_the_table() {
    let (path, text) = (docs().join("metrics.md"), document());
    if env::var_os("REMUDA_WRITE_DOCS").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let is_current = fs::read_to_string(&path).is_ok_and(|found| found == text);
    assert!(is_current, "docs/metrics.md does not match the table of metrics; write it with: {WRITE}");
}

/// Every word of a query that could be a metric.
fn metrics_in(query: &str) -> impl Iterator<Item = &str> {
    let words = query.split(|it: char| !it.is_ascii_alphanumeric() && it != '_' && it != ':');
    words.filter(|word| word.starts_with("remuda_") || word.starts_with("process_"))
}

/// The metric that a sample of this name belongs to.
fn metric_of(name: &str) -> Option<&'static Metric> {
    all().find(|metric| match metric.kind {
        MetricKind::Histogram => {
            name.strip_prefix(metric.name).is_some_and(|rest| ["_bucket", "_sum", "_count"].contains(&rest))
        }
        MetricKind::Counter | MetricKind::Gauge => name == metric.name,
    })
}

/// Labels that a query groups by or matches: in `by (…)` and before `=`, `=~` or `!=`.
fn labels_in(query: &str) -> Vec<String> {
    let mut labels = Vec::new();
    for group in query.split("by (").skip(1) {
        let inside = group.split(')').next().unwrap_or_default();
        labels.extend(inside.split(',').map(|label| label.trim().to_owned()));
    }
    for matchers in query.split('{').skip(1) {
        let inside = matchers.split('}').next().unwrap_or_default();
        let name = |matcher: &str| matcher.split(['=', '!']).next().unwrap_or_default().trim().to_owned();
        labels.extend(inside.split("\",").map(name).filter(|name| !name.is_empty()));
    }
    labels
}

/// Labels that Prometheus adds, and those of histograms and of Grafana's own variables.
const FOREIGN_LABELS: [&str; 3] = ["le", "instance", "job"];

fn check(file: &str, query: &str) {
    let used: Vec<_> = metrics_in(query).collect();
    assert!(!used.is_empty(), "{file}: {query} names no metric");
    let metrics: Vec<_> = used
        .iter()
        .map(|name| {
            metric_of(name)
                .unwrap_or_else(|| panic!("{file}: {query} names {name}, which is not in the table"))
        })
        .collect();
    let known = |label: &str| {
        FOREIGN_LABELS.contains(&label) || metrics.iter().any(|metric| metric.labels.contains(&label))
    };
    for label in labels_in(query) {
        assert!(known(&label), "{file}: {query} uses the label {label}, which its metrics do not have");
    }
}

/// Every `expr` in a dashboard, however deep.
fn expressions(value: &serde_json::Value, found: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, inner) in fields {
                match inner.as_str() {
                    Some(query) if name == "expr" => found.push(query.to_owned()),
                    _ => expressions(inner, found),
                }
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
        _ => {}
    }
}

#[test]
fn grafana_dashboard_asks_for_metrics_that_exist() {
    let text = fs::read_to_string(docs().join("grafana/remuda.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut queries = Vec::new();
    expressions(&dashboard, &mut queries);
    assert!(queries.len() >= 20, "{} queries", queries.len());
    queries.iter().for_each(|query| check("docs/grafana/remuda.json", query));
}

#[test]
fn alert_rules_ask_for_metrics_that_exist() {
    let text = fs::read_to_string(docs().join("prometheus/alerts.yml")).unwrap();
    let queries: Vec<_> = text.lines().filter_map(|line| line.trim().strip_prefix("expr:")).collect();
    assert!(queries.len() >= 10, "{} rules", queries.len());
    queries.iter().for_each(|query| check("docs/prometheus/alerts.yml", query));
}

#[test]
fn query_with_an_unknown_metric_or_label_is_noticed() {
    for query in
        ["rate(remuda_jobs_lost_total[5m])", "sum by (tenant) (remuda_jobs)", r#"remuda_jobs{worker="a"}"#]
    {
        assert!(std::panic::catch_unwind(|| check("a test", query)).is_err(), "{query}");
    }
    check(
        "a test",
        r#"histogram_quantile(0.9, sum by (le) (rate(remuda_job_run_seconds_bucket{instance=~"$i"}[5m])))"#,
    );
}
