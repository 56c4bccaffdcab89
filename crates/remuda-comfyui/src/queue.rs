//! `/queue`: the running and the waiting prompts. The waiting ones are in no useful order, so only membership is read.
//! Graphs are skipped without building them, because there may be thousands.

use serde::Deserialize;

use super::json::Text;
use super::tag::{Extra, PromptPhase, PromptTag};

#[derive(Debug, Default, Deserialize)]
pub(super) struct Queue {
    #[serde(rename = "queue_running")]
    running: Vec<Item>,
    #[serde(rename = "queue_pending")]
    pending: Vec<Item>,
}

impl Queue {
    pub(super) fn is_running(&self, id: &str) -> bool {
        self.running.iter().any(|item| item.id() == Some(id))
    }

    /// Number of waiting copies: ComfyUI accepts the same id more than once.
    pub(super) fn pending(&self, id: &str) -> usize {
        self.pending.iter().filter(|item| item.id() == Some(id)).count()
    }

    /// A hash of the running prompt's id, to detect whether another one runs later.
    pub(super) fn ahead(&self) -> Option<u64> {
        let id = self.running.first()?.id()?;
        let (id_hash, _) =
            blake3::hash(id.as_bytes()).as_bytes().split_first_chunk().map(|(head, rest)| (*head, rest))?;
        Some(u64::from_be_bytes(id_hash))
    }

    pub(super) fn tags(&self) -> impl Iterator<Item = (&str, &PromptTag, PromptPhase)> {
        let running = self.running.iter().map(|item| (item, PromptPhase::Running));
        let pending = self.pending.iter().map(|item| (item, PromptPhase::Pending));
        running.chain(pending).filter_map(|(item, phase)| Some((item.id()?, item.tag()?, phase)))
    }
}

/// `[number, id, graph, extra_data, outputs, ...]`, in the queue and in history.
#[derive(Debug)]
pub(super) struct Item {
    id: Text,
    extra: Extra,
}

impl Item {
    pub(super) fn id(&self) -> Option<&str> {
        self.id.0.as_deref()
    }

    pub(super) fn tag(&self) -> Option<&PromptTag> {
        self.extra.tag.as_ref()
    }
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Parts)
    }
}

struct Parts;

impl<'de> serde::de::Visitor<'de> for Parts {
    type Value = Item;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of number, id, graph, extra data and outputs")
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Item, A::Error> {
        use serde::de::IgnoredAny;
        let _number: Option<IgnoredAny> = seq.next_element()?;
        let id = seq.next_element()?.unwrap_or_default();
        let _graph: Option<IgnoredAny> = seq.next_element()?;
        let extra = seq.next_element()?.unwrap_or_default();
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Item { id, extra })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    #[test]
    fn membership_is_read_from_irregular_items() {
        let queue: Queue = json::parse(
            br#"{"queue_running":[[3,"a",{"1":{"inputs":{"x":NaN}}},{"client_id":"c"},["1"],{"new":1}]],
                "queue_pending":[[5,"b",{},{}],[4,"c"],[4,"c",{},null,[]],[7,42,{},{}],[]],"more":[]}"#,
        )
        .unwrap();
        assert!(queue.is_running("a") && !queue.is_running("b"));
        let other: Queue = json::parse(br#"{"queue_running":[[4,"c"]],"queue_pending":[]}"#).unwrap();
        assert!(queue.ahead().is_some() && queue.ahead() != other.ahead());
        assert_eq!(["a", "b", "c", "42", "None"].map(|id| queue.pending(id)), [0, 1, 2, 0, 0]);
    }

    #[test]
    fn other_answers_are_not_an_empty_queue() {
        for other in ["{}", "[]", "null", r#"{"queue_running":[]}"#, r#"{"error":"no"}"#] {
            assert!(json::parse::<Queue>(other.as_bytes()).is_err(), "{other}");
        }
    }
}
