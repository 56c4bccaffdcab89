//! Server-sent events, as far as the plane sends them: `id:`, `event:` and `data:`, each event ended by an empty line.

use anyhow::bail;

/// More than this without an empty line is no event of ours.
const EVENT_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: Option<u64>,
    pub(crate) name: String,
    pub(crate) data: String,
}

/// Bytes as they come, cut anywhere; events as they are complete.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    bytes: Vec<u8>,
}

impl Reader {
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> anyhow::Result<Vec<Event>> {
        self.bytes.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.bytes.windows(2).position(|two| two == b"\n\n") {
            let event: Vec<u8> = self.bytes.drain(..end + 2).collect();
            events.extend(read(&String::from_utf8_lossy(&event)));
        }
        if self.bytes.len() > EVENT_BYTES_MAX {
            bail!("the plane sent an event of more than {EVENT_BYTES_MAX} bytes");
        }
        Ok(events)
    }
}

/// A comment, which keeps the line open, is no event.
fn read(text: &str) -> Option<Event> {
    let mut event = Event::default();
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
    fn events_survive_being_cut_anywhere() {
        let sent = "id: 7\nevent: job:failed\ndata: {\"why\":\"größer\"}\n\n: keep-alive\n\nevent: gap\ndata: {}\n\n";
        let event = |id, name: &str, data: &str| Event { id, name: name.to_owned(), data: data.to_owned() };
        let expected = [event(Some(7), "job:failed", "{\"why\":\"größer\"}"), event(None, "gap", "{}")];
        for cut in 0..sent.len() {
            let (first, second) = sent.as_bytes().split_at(cut);
            let mut reader = Reader::default();
            let mut events = reader.feed(first).unwrap();
            events.extend(reader.feed(second).unwrap());
            assert_eq!(events, expected, "cut at {cut}");
        }
    }
}
