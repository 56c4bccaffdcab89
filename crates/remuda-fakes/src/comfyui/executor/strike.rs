//! Faults in the middle of a run: at the node that requests them, otherwise half-way.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::ws::Message;

use super::super::clock::Rest;
use super::super::faults::Fault;
use super::super::graph::Node;
use super::super::nodes::work::Failure;
use super::super::process::Order;
use super::run::Run;
use super::speech::frame;

/// Larger than most clients accept.
const HUGE_PREVIEW: usize = 8 << 20;

impl Run {
    /// Whether a node of the graph requests faults itself.
    pub(super) fn has_magic(&self) -> bool {
        self.item.graph.nodes().iter().any(|node| node.class == "RemudaFault")
    }

    /// Applies every fault drawn for this prompt that happens during the run, once.
    pub(in super::super) async fn strike(&mut self, node: &Node) -> Result<(), Failure> {
        if std::mem::replace(&mut self.has_struck, true) {
            return Ok(());
        }
        let item = Arc::clone(&self.item);
        for fault in item.faults.iter().filter(|fault| !fault.is_at_submission()) {
            self.server.estate.count_fault(*fault);
            self.strike_with(*fault, node).await?;
        }
        Ok(())
    }

    async fn strike_with(&self, fault: Fault, node: &Node) -> Result<(), Failure> {
        let server = &self.server;
        match fault {
            Fault::DropSockets => server.sockets.cut(),
            Fault::HalfOpen => server.sockets.freeze(),
            Fault::SlowReader => {
                server.sockets.hold(true);
                let (server, trouble) = (Arc::clone(server), server.options().trouble);
                tokio::spawn(async move {
                    tokio::time::sleep(trouble).await;
                    server.sockets.hold(false);
                });
            }
            Fault::SlowHttp => server.set_http_delay(server.options().trouble),
            Fault::GarbageFrames => self.send_garbage(),
            Fault::HugePreview => {
                let preview = frame(1, 1, &[0xff, 0xd8, 0xff, 0xe0], &vec![0; HUGE_PREVIEW]);
                server.sockets.post_binary(self.client.as_deref(), preview);
            }
            Fault::Hang => {
                server.clock.set(Rest::Dead);
                pending::<()>().await;
            }
            Fault::Die => {
                server.clock.set(Rest::Dead);
                server.die();
                pending::<()>().await;
            }
            Fault::Restart => {
                server.clock.set(Rest::Dead);
                let _ = server.estate.orders.send(Order::Restart(None));
                pending::<()>().await;
            }
            Fault::Oom => return Err(Failure::oom()),
            Fault::Cuda => return Err(Failure::cuda()),
            Fault::Disk => return Err(Failure::disk()),
            Fault::ExecutorDead => return Err(Failure::Exit),
            Fault::InterruptedBySomeone => {
                tracing::debug!(node = node.id, "someone interrupts a stand-in");
                server.interrupt.store(true, Ordering::Relaxed);
                return self.heed_interrupt();
            }
            // These happen at submission, with each message, or at the end.
            Fault::DropCompletion
            | Fault::DropAllMessages
            | Fault::Slow
            | Fault::Cached
            | Fault::EmptyOutputs
            | Fault::Nan
            | Fault::Duplicate
            | Fault::LostSubmitAnswer
            | Fault::RefuseSubmit
            | Fault::ForeignPrompts
            | Fault::HistoryCleared
            | Fault::MissingOutput
            | Fault::ShortOutput => {}
        }
        Ok(())
    }

    fn send_garbage(&self) {
        let client = self.client.as_deref();
        for text in [
            "",
            "{",
            "null",
            "[]",
            "{\"type\":7}",
            "{\"type\":\"executing\"}",
            "{\"type\":\"nonsense\",\"data\":1}",
        ] {
            self.server.sockets.post_message(client, Message::Text(text.into()));
        }
        for bytes in [&b""[..], b"\0", b"\0\0\0\x04\xff\xff\xff\xff{", b"\0\0\0\x63\0\0\0\0", b"\0\0\0\x01"] {
            self.server.sockets.post_binary(client, bytes.to_vec());
        }
    }
}
