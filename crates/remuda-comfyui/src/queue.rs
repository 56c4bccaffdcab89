//! `/queue`: the running and the waiting prompts. The waiting ones are in no useful order, so only membership is read.
//! Graphs are skipped without building them, because there may be thousands; an agent that looks for its prompts reads
//! them (`Queue<Box<RawValue>>`).

use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::json::Text;
use super::tag::{Extra, PromptPhase, PromptTag};

#[derive(Debug, Deserialize)]
pub(super) struct Queue<Graph = IgnoredAny> {
    #[serde(rename = "queue_running", bound(deserialize = "Graph: Deserialize<'de>"))]
    running: Vec<Item<Graph>>,
    #[serde(rename = "queue_pending", bound(deserialize = "Graph: Deserialize<'de>"))]
    pending: Vec<Item<Graph>>,
}

impl<Graph> Queue<Graph> {
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

    /// The running prompt comes first.
    pub(super) fn items(&self) -> impl Iterator<Item = (&Item<Graph>, PromptPhase)> {
        let running = self.running.iter().map(|item| (item, PromptPhase::Running));
        running.chain(self.pending.iter().map(|item| (item, PromptPhase::Pending)))
    }
}

/// `[number, id, graph, extra_data, outputs, ...]`, in the queue and in history.
#[derive(Debug)]
pub(super) struct Item<Graph = IgnoredAny> {
    id: Text,
    graph: Option<Graph>,
    extra: Extra,
}

impl<Graph> Item<Graph> {
    pub(super) fn id(&self) -> Option<&str> {
        self.id.0.as_deref()
    }

    pub(super) fn graph(&self) -> Option<&Graph> {
        self.graph.as_ref()
    }

    pub(super) fn tag(&self) -> Option<&PromptTag> {
        self.extra.tag.as_ref()
    }
}

impl<'de, Graph: Deserialize<'de>> Deserialize<'de> for Item<Graph> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Parts(PhantomData))
    }
}

struct Parts<Graph>(PhantomData<Graph>);

impl<'de, Graph: Deserialize<'de>> serde::de::Visitor<'de> for Parts<Graph> {
    type Value = Item<Graph>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of number, id, graph, extra data and outputs")
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Item<Graph>, A::Error> {
        let _number: Option<IgnoredAny> = seq.next_element()?;
        let id = seq.next_element()?.unwrap_or_default();
        let graph = seq.next_element()?;
        let extra = seq.next_element()?.unwrap_or_default();
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Item { id, graph, extra })
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
