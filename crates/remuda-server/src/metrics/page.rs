//! The text format of Prometheus, version 0.0.4: each family with its meaning and type, then its samples.

use std::fmt::{Display, Write};

use remuda_core::histogram::Histogram;

use super::table::{Metric, MetricKind};

/// A page of metrics. Families are written one after the other, each once.
#[derive(Debug, Default)]
pub(crate) struct Page {
    text: String,
}

/// A family under way.
#[derive(Debug)]
pub(crate) struct Family<'p> {
    text: &'p mut String,
    metric: &'static Metric,
}

impl Page {
    pub(crate) fn family(&mut self, metric: &'static Metric) -> Family<'_> {
        let Metric { name, kind, help, .. } = metric;
        // Writing to a string cannot fail.
        let _ = writeln!(
            self.text,
            "# HELP {name} {}\n# TYPE {name} {}",
            help.replace('\\', "\\\\"),
            kind.as_str()
        );
        Family { text: &mut self.text, metric }
    }

    /// A family with one sample and no labels.
    pub(crate) fn single(&mut self, metric: &'static Metric, value: impl Display) {
        self.family(metric).sample([], value);
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

impl Family<'_> {
    /// `values`: one for each label of the table.
    pub(crate) fn sample<const N: usize>(&mut self, values: [&str; N], value: impl Display) -> &mut Self {
        debug_assert_eq!(N, self.metric.labels.len(), "labels of {}", self.metric.name);
        debug_assert_ne!(self.metric.kind, MetricKind::Histogram, "{} has buckets", self.metric.name);
        self.text.push_str(self.metric.name);
        write_labels(self.text, self.metric.labels.iter().copied().zip(values));
        let _ = writeln!(self.text, " {value}");
        self
    }

    /// `units`: how many units of the histogram make one of the metric, such as 1000 milliseconds for a second.
    pub(crate) fn histogram(&mut self, histogram: &Histogram, units: u32) {
        let (name, scale) = (self.metric.name, f64::from(units));
        for (bound, count) in histogram.cumulative() {
            let _ = writeln!(self.text, "{name}_bucket{{le=\"{}\"}} {count}", bound as f64 / scale);
        }
        let (count, sum) = (histogram.count(), histogram.sum() as f64 / scale);
        let _ = writeln!(
            self.text,
            "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {sum}\n{name}_count {count}"
        );
    }
}

fn write_labels<'a>(text: &mut String, labels: impl Iterator<Item = (&'static str, &'a str)>) {
    let mut opening = '{';
    for (label, value) in labels {
        text.push(std::mem::replace(&mut opening, ','));
        text.push_str(label);
        text.push_str("=\"");
        for character in value.chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                other => text.push(other),
            }
        }
        text.push('"');
    }
    if opening == ',' {
        text.push('}');
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::{BUILD_INFO, JOB_RUN, MACHINES, TERM};
    use super::*;

    #[test]
    fn families_are_written_in_the_text_format() {
        let mut page = Page::default();
        page.single(&TERM, 3);
        page.family(&MACHINES).sample(["gpus", "up"], 2).sample(["cpus", "made"], 0);
        let text = page.into_text();
        assert!(text.contains("# TYPE remuda_plane_term gauge\nremuda_plane_term 3\n"), "{text}");
        assert!(text.ends_with("remuda_machines{fleet=\"gpus\",phase=\"up\"} 2\nremuda_machines{fleet=\"cpus\",phase=\"made\"} 0\n"));
    }

    #[test]
    fn label_values_are_escaped() {
        let mut page = Page::default();
        page.family(&BUILD_INFO).sample(["a\"b\\c\nd"], 1);
        assert!(page.into_text().ends_with("{version=\"a\\\"b\\\\c\\nd\"} 1\n"));
    }

    #[test]
    fn buckets_are_cumulative_and_in_the_unit_of_the_name() {
        let mut histogram = Histogram::new(&[500, 1000]);
        [400, 600, 5000].into_iter().for_each(|millis| histogram.record(millis));
        let mut page = Page::default();
        page.family(&JOB_RUN).histogram(&histogram, 1000);
        let text = page.into_text();
        for line in [
            "remuda_job_run_seconds_bucket{le=\"0.5\"} 1",
            "remuda_job_run_seconds_bucket{le=\"1\"} 2",
            "remuda_job_run_seconds_bucket{le=\"+Inf\"} 3",
            "remuda_job_run_seconds_sum 6",
            "remuda_job_run_seconds_count 3",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is missing in {text}");
        }
    }
}
