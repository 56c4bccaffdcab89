//! What nodes need from their run: inputs, time, and storage for images.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Bytes;
use serde_json::{Value, json};

use super::super::faults::Fault;
use super::super::files::{Folder, Place};
use super::super::graph::{Node, at_slot, link};
use super::super::image::Image;
use super::super::nodes::Data;
use super::super::nodes::work::Failure;
use super::super::queue::Item;
use super::super::server::Server;
use super::super::values;
use super::run::Run;

impl Run {
    pub(in super::super) fn server(&self) -> &Server {
        &self.server
    }

    pub(in super::super) fn item(&self) -> &Item {
        &self.item
    }

    /// Spends this many seconds of GPU time.
    pub(in super::super) async fn pause(&self, seconds: f64) {
        let factor = if self.item.faults.contains(&Fault::Slow) { 10.0 } else { 1.0 };
        let seconds = seconds * factor / self.server.options().speed;
        match Duration::try_from_secs_f64(seconds) {
            Ok(time) if !time.is_zero() && !self.is_silent => self.server.clock.pass(time).await,
            _ => tokio::task::yield_now().await,
        }
    }

    /// Checks the interrupt flag; nothing else does.
    pub(in super::super) fn heed_interrupt(&self) -> Result<(), Failure> {
        let is_set = !self.is_silent && self.server.interrupt.swap(false, Ordering::Relaxed);
        if is_set { Err(Failure::Interrupted) } else { Ok(()) }
    }

    /// Writes images and returns what the node displays.
    pub(in super::super) fn keep(
        &self,
        image: Image,
        folder: Folder,
        subfolder: &str,
        prefix: &str,
    ) -> Value {
        let faults = &self.item.faults;
        let disk = &self.server.estate.disk;
        let info = self.item.extra.get("extra_pnginfo").and_then(Value::as_object).into_iter().flatten();
        let info: Vec<(&str, String)> = info.map(|(key, value)| (key.as_str(), value.to_string())).collect();
        let info = info.iter().map(|(key, text)| (*key, text.as_str()));
        let texts: Vec<_> = std::iter::once(("prompt", self.item.graph.text())).chain(info).collect();
        let mut file = Image { batch: 1, ..image }.to_png(&texts);
        if faults.contains(&Fault::ShortOutput) {
            file.truncate(file.len() / 2);
        }
        let file = Bytes::from(file);
        let kept = (0..image.batch).map(|_| {
            let place = disk.write_numbered(folder, subfolder, prefix, file.clone());
            if faults.contains(&Fault::MissingOutput) {
                disk.remove(&place);
            }
            self.write_to_output_directory(&place, &file);
            json!({"filename": place.name, "subfolder": place.subfolder, "type": folder.name()})
        });
        json!({"images": kept.collect::<Vec<_>>()})
    }

    /// As a server that shares a file system with its client.
    fn write_to_output_directory(&self, place: &Place, file: &Bytes) {
        let Some(directory) = self.server.options().output_directory.as_ref() else { return };
        if place.folder == Folder::Output && !place.leaves_its_folder() {
            let folder = directory.join(&place.subfolder);
            let written = std::fs::create_dir_all(&folder)
                .and_then(|()| std::fs::write(folder.join(&place.name), file));
            if let Err(error) = written {
                tracing::warn!(%error, "a picture could not be written");
            }
        }
    }

    pub(super) fn spoil(&self, mut output: Value) -> Value {
        if self.item.faults.contains(&Fault::Nan) {
            output["score"] = json!([values::nan()]);
        }
        output
    }

    pub(in super::super) fn linked(&self, node: &Node, name: &str) -> Option<Data> {
        let (from, slot) = link(node.input(name)?)?;
        at_slot(self.results.get(from)?, slot).cloned()
    }

    pub(in super::super) fn image(&self, node: &Node, name: &str) -> Image {
        match self.linked(node, name) {
            Some(Data::Image(image) | Data::Latent(image)) => image,
            _ => Image { width: 64, height: 64, batch: 1, rgb: [0, 0, 0] },
        }
    }

    pub(in super::super) fn integer(&self, node: &Node, name: &str, default: u64) -> u64 {
        node.input(name).and_then(Value::as_u64).unwrap_or(default)
    }

    pub(in super::super) fn float(&self, node: &Node, name: &str, default: f64) -> f64 {
        node.input(name).and_then(Value::as_f64).unwrap_or(default)
    }

    pub(in super::super) fn text(&self, node: &Node, name: &str) -> String {
        node.input(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    pub(in super::super) fn truth(&self, node: &Node, name: &str) -> bool {
        node.input(name).is_some_and(values::is_truthy)
    }
}
