//! RunPod's system log of a pod. It is the only place that explains a failed pull or a container that never starts; it
//! is added to error messages.

use std::time::Duration;

use remuda_core::id::PodId;
use remuda_core::provider::ProviderError;
use serde::Deserialize;

use super::{RunPodProvider, path_part};
use remuda_net::text::one_line;

/// The stream stays open after the last line; what arrives within this time is enough.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(1);
const LINES_MAX: usize = 20;
const LINE_CHARS_MAX: usize = 300;
const BYTES_MAX: usize = 256 << 10;

#[derive(Deserialize)]
struct Event {
    line: String,
}

impl RunPodProvider {
    /// The last lines about a pod, newest last, as far as they arrive within a few seconds.
    pub async fn system_log(&self, pod: &PodId) -> Result<Vec<String>, ProviderError> {
        let path = ["pods", path_part(pod)?, "logs"];
        let tail = LINES_MAX.to_string();
        let mut response = self.api.stream(&path, &[("source", "system"), ("tail", &tail)]).await?;
        let mut text = Vec::new();
        let reading = async {
            while text.len() < BYTES_MAX
                && let Ok(Ok(Some(piece))) = tokio::time::timeout(PAUSE_MAX, response.chunk()).await
            {
                text.extend_from_slice(&piece);
            }
        };
        // The timeout is expected: the stream does not end.
        drop(tokio::time::timeout(READ_TIMEOUT, reading).await);
        Ok(lines(&String::from_utf8_lossy(&text)))
    }
}

/// The lines in an event stream; truncated and unknown events are skipped.
fn lines(stream: &str) -> Vec<String> {
    let data = stream.lines().filter_map(|line| line.strip_prefix("data:"));
    let mut lines: Vec<_> = data
        .filter_map(|data| serde_json::from_str::<Event>(data.trim()).ok())
        .map(|event| one_line(&event.line, LINE_CHARS_MAX))
        .collect();
    lines.drain(..lines.len().saturating_sub(LINES_MAX));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_log_lines_are_sanitized() {
        let event = |n: usize| {
            format!(
                "id: 1/{n}\ndata: {{\"ts\":\"t\",\"source\":\"system\",\"line\":\"pull {n}\\u001b[2J\"}}\n\n"
            )
        };
        let mut stream: String = (0..30).map(event).collect();
        stream.push_str(": comment\n\ndata: no json\n\ndata: {\"line\":\"cut o");
        let lines = lines(&stream);
        assert_eq!(lines.len(), LINES_MAX);
        assert_eq!(lines.last().unwrap(), "pull 29[2J");
    }
}
