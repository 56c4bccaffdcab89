//! A reader for the plane's server-sent events: `id:`, `event:` and `data:` lines, each event ended by an empty line.
//!
//! Hand-written because it is forty lines and bounds the size of an event; the usual crates buffer without a limit.

use anyhow::bail;

/// A longer event was not sent by a plane.
const EVENT_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    pub id: Option<u64>,
    pub name: String,
    pub data: String,
}

/// Takes bytes in pieces of any size and returns events as they are complete.
#[derive(Debug, Default)]
pub struct SseReader {
    bytes: Vec<u8>,
}

impl SseReader {
    pub fn feed(&mut self, bytes: &[u8]) -> anyhow::Result<Vec<SseEvent>> {
        self.bytes.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.bytes.windows(2).position(|two| two == b"\n\n") {
            let event: Vec<u8> = self.bytes.drain(..end + 2).collect();
            events.extend(parse_event(&String::from_utf8_lossy(&event)));
        }
        if self.bytes.len() > EVENT_BYTES_MAX {
            bail!("the plane sent an event of more than {EVENT_BYTES_MAX} bytes");
        }
        Ok(events)
    }
}

/// None for a comment, which only keeps the connection open.
fn parse_event(text: &str) -> Option<SseEvent> {
    let mut event = SseEvent::default();
    for line in text.lines() {
        match line.split_once(':') {
            Some(("id", id)) => event.id = id.trim().parse().ok(),
            Some(("event", name)) => name.trim().clone_into(&mut event.name),
            Some(("data", data)) => event.data.push_str(data.strip_prefix(' ').unwrap_or(data)),
            Some(_) | None => {}
        }
    }
    (!event.name.is_empty() || !event.data.is_empty()).then_some(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_wherever_the_stream_is_cut() {
        let sent = "id: 7\nevent: job:failed\ndata: {\"why\":\"größer\"}\n\n: keep-alive\n\nevent: gap\ndata: {}\n\n";
        let event =
            |id, name: &str, data: &str| SseEvent { id, name: name.to_owned(), data: data.to_owned() };
        let expected = [event(Some(7), "job:failed", "{\"why\":\"größer\"}"), event(None, "gap", "{}")];
        for cut in 0..sent.len() {
            let (first, second) = sent.as_bytes().split_at(cut);
            let mut reader = SseReader::default();
            let mut events = reader.feed(first).unwrap();
            events.extend(reader.feed(second).unwrap());
            assert_eq!(events, expected, "cut at {cut}");
        }
    }
}
