//! Names of output files as one ComfyUI server would have given them: `prefix_00001_.png`, then `prefix_00002_.png`, in the
//! folder that the user's `filename_prefix` names. Every attempt saves into a folder of its own, so all servers begin with
//! number one; here each file gets the next number of its prefix, for each tenant.
//!
//! ```text
//!  counter/TENANT/KIND/FOLDER/PREFIX   the last number given
//!  named/TENANT/KIND/FOLDER/NAME       job, node, key and name on the server; found by the job too
//! ```
//!
//! A file is named once, when its node reports it or when its ended prompt is first read, and keeps its name. The documents
//! are written in the background: a name is known at once, and after a crash in between the file is named again when it is
//! read. Only prompts of this API are named; other jobs' files are found in the folder `JOB/NODE`, and so is a file whose name has
//! expired.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use remuda_core::document::{Collection, Document};
use remuda_core::id::{JobId, Tenant};
use remuda_core::plane::PlaneEvent;
use remuda_store::StoreError;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::to_raw_value;
use tokio::sync::Mutex;
use tracing::warn;

use super::super::Context;
use super::history_entry::{StoredOutput, file_ref};
use super::uploads;

/// Files of one job that get names; more are found in the folder `JOB/NODE`.
const NAMED_MAX: usize = 1_000;
/// Counters in memory; the store has all of them.
const COUNTERS_MAX: usize = 10_000;
/// Numbers that are skipped because an upload has the name.
const TAKEN_MAX: u32 = 100;

/// A file of a job as its server named it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct ServerFile {
    pub(super) node: String,
    pub(super) key: String,
    pub(super) name: String,
}

impl ServerFile {
    pub(super) fn of(output: &StoredOutput) -> ServerFile {
        ServerFile { node: output.node.clone(), key: output.key.clone(), name: output.name.clone() }
    }
}

/// Folder and name under which clients find a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClientName {
    folder: String,
    name: String,
}

/// The named files of one job.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct JobNames(BTreeMap<ServerFile, ClientName>);

impl JobNames {
    pub(super) fn extend(&mut self, other: JobNames) {
        self.0.extend(other.0);
    }

    /// How clients name a file.
    pub(super) fn file_ref(&self, job: JobId, file: &ServerFile, kind: &str) -> Value {
        match self.0.get(file) {
            Some(ClientName { folder, name }) => {
                serde_json::json!({ "filename": name, "subfolder": folder, "type": kind })
            }
            None => file_ref(job, &file.node, &file.name, kind),
        }
    }

    pub(super) fn has_all(&self, outputs: &[StoredOutput]) -> bool {
        outputs.iter().take(NAMED_MAX).all(|output| self.0.contains_key(&ServerFile::of(output)))
    }
}

/// A document of a named file.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct NamedFile {
    job: JobId,
    #[serde(flatten)]
    file: ServerFile,
    #[serde(flatten)]
    shown: ClientNameFields,
}

/// `ClientName` under keys that a `ServerFile` does not have.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ClientNameFields {
    shown_folder: String,
    shown_name: String,
}

/// Names that are being given.
#[derive(Debug, Default)]
pub(super) struct OutputNames(Mutex<NamesState>);

#[derive(Debug, Default)]
struct NamesState {
    /// The last number of each prefix, by the id of its document.
    counters: BTreeMap<String, u32>,
    /// Names whose documents are not stored yet.
    unwritten: BTreeMap<JobId, JobNames>,
    /// The files of the same names, by the ids of their documents.
    unwritten_files: BTreeMap<String, (JobId, ServerFile)>,
}

fn index_key(job: JobId) -> String {
    format!("named/{job}")
}

fn document_id(tenant: &Tenant, kind: &str, folder: &str, name: &str) -> String {
    format!("named/{tenant}/{kind}/{folder}/{name}")
}

impl OutputNames {
    /// The names of these files of a job; files without one get theirs.
    pub(super) async fn assign(
        &self,
        context: &Context,
        tenant: &Tenant,
        job: JobId,
        outputs: &[StoredOutput],
    ) -> Result<JobNames, StoreError> {
        let known = stored_names(context, job).await?;
        if known.has_all(outputs) {
            return Ok(known);
        }
        let mut state = self.0.lock().await;
        // Another task may have named them meanwhile.
        let mut names = stored_names(context, job).await?;
        names.extend(state.unwritten.get(&job).cloned().unwrap_or_default());
        let mut new = Vec::new();
        // Files with one number on the server keep one number here: a video and its first frame.
        let mut numbers = BTreeMap::new();
        for output in outputs.iter().take(NAMED_MAX) {
            let file = ServerFile::of(output);
            if names.0.contains_key(&file) {
                continue;
            }
            let shown = state.next_name(context, tenant, output, &mut numbers).await?;
            names.0.insert(file.clone(), shown.clone());
            new.push((output.kind.clone(), file, shown));
        }
        if !new.is_empty() {
            state.unwritten.insert(job, names.clone());
            let documents = state.documents(context, tenant, job, new, numbers.into_keys());
            let (context, ids): (_, Vec<String>) =
                (context.clone(), documents.iter().map(|document| document.id.clone()).collect());
            tokio::spawn(async move {
                write(&context, documents).await;
                context.comfyui.output_names.0.lock().await.forget(job, &ids);
            });
        }
        Ok(names)
    }

    /// The file behind a name.
    pub(super) async fn find(
        &self,
        context: &Context,
        tenant: &Tenant,
        kind: &str,
        folder: &str,
        name: &str,
    ) -> Result<Option<(JobId, ServerFile)>, StoreError> {
        let id = document_id(tenant, kind, folder, name);
        if let Some(found) = self.0.lock().await.unwritten_files.get(&id) {
            return Ok(Some(found.clone()));
        }
        let document = context.store.document(Collection::Comfyui, &id).await?;
        let named = document.and_then(|it| serde_json::from_str::<NamedFile>(it.body.get()).ok());
        Ok(named.map(|named| (named.job, named.file)))
    }
}

async fn stored_names(context: &Context, job: JobId) -> Result<JobNames, StoreError> {
    let documents = context.store.find_by_index_key(Collection::Comfyui, &index_key(job)).await?;
    let named = documents.iter().filter_map(|it| serde_json::from_str::<NamedFile>(it.body.get()).ok());
    let names = named.map(|NamedFile { file, shown, .. }| {
        (file, ClientName { folder: shown.shown_folder, name: shown.shown_name })
    });
    Ok(JobNames(names.collect()))
}

async fn write(context: &Context, documents: Vec<Document>) {
    let requests = documents
        .into_iter()
        .map(|document| context.plane.request(PlaneEvent::PutDocument(Arc::new(document))));
    if let Some(error) = join_all(requests).await.into_iter().find_map(Result::err) {
        // It is named again when it is read.
        warn!(%error, "names of output files not stored");
    }
}

impl NamesState {
    async fn next_name(
        &mut self,
        context: &Context,
        tenant: &Tenant,
        output: &StoredOutput,
        numbers: &mut BTreeMap<String, BTreeMap<u32, u32>>,
    ) -> Result<ClientName, StoreError> {
        let (prefix, number, rest) = split_number(&output.name);
        let id = format!(
            "counter/{tenant}/{}/{}/{prefix}{}",
            output.kind,
            output.folder,
            if number.is_none() { rest } else { "" }
        );
        let given = numbers.entry(id.clone()).or_default();
        let name = |next| numbered_output(prefix, number.is_some(), next, rest);
        if let Some(next) = number.and_then(|number| given.get(&number)) {
            return Ok(ClientName { folder: output.folder.clone(), name: name(*next) });
        }
        let mut last = match self.counters.get(&id) {
            Some(last) => *last,
            None => stored_counter(context, &id).await?,
        };
        for _ in 0..TAKEN_MAX {
            last = last.saturating_add(1);
            if uploads::find(context, tenant, &output.kind, &output.folder, &name(last)).await?.is_none() {
                break;
            }
        }
        self.counters.insert(id, last);
        given.insert(number.unwrap_or(last), last);
        Ok(ClientName { folder: output.folder.clone(), name: name(last) })
    }

    fn documents(
        &mut self,
        context: &Context,
        tenant: &Tenant,
        job: JobId,
        new: Vec<(String, ServerFile, ClientName)>,
        counters: impl Iterator<Item = String>,
    ) -> Vec<Document> {
        let expires_at = Some(context.plane.clock.now().plus(context.retention));
        let document = |id: String, index_key: String, body: Box<serde_json::value::RawValue>| Document {
            collection: Collection::Comfyui,
            id,
            tenant: Some(tenant.clone()),
            index_key,
            // A counter lives as long as the files that it counted; both live longer when it is used again.
            expires_at,
            body: Arc::from(body),
        };
        let mut documents = Vec::new();
        for (kind, file, ClientName { folder, name }) in new {
            let id = document_id(tenant, &kind, &folder, &name);
            let shown = ClientNameFields { shown_folder: folder, shown_name: name };
            self.unwritten_files.insert(id.clone(), (job, file.clone()));
            let body = to_raw_value(&NamedFile { job, file, shown });
            documents.extend(body.ok().map(|body| document(id, index_key(job), body)));
        }
        for id in counters {
            let last = self.counters.get(&id).copied().unwrap_or_default();
            documents.extend(to_raw_value(&last).ok().map(|body| document(id, String::new(), body)));
        }
        documents
    }

    /// These documents are stored.
    fn forget(&mut self, job: JobId, ids: &[String]) {
        self.unwritten.remove(&job);
        for id in ids {
            self.unwritten_files.remove(id);
        }
        if self.counters.len() > COUNTERS_MAX && self.unwritten.is_empty() {
            self.counters.clear();
        }
    }
}

async fn stored_counter(context: &Context, id: &str) -> Result<u32, StoreError> {
    let document = context.store.document(Collection::Comfyui, id).await?;
    let now = context.plane.clock.now();
    let live = document.filter(|document| document.is_live(now));
    Ok(live.and_then(|document| serde_json::from_str(document.body.get()).ok()).unwrap_or(0))
}

/// Splits `a_b_00001_.png` into `a_b`, 1 and `_.png`. A name without a number is its stem and its ending.
fn split_number(name: &str) -> (&str, Option<u32>, &str) {
    for (at, _) in name.rmatch_indices('_') {
        let after = &name[at + 1..];
        let digits = after.bytes().take_while(u8::is_ascii_digit).count();
        if (5..=9).contains(&digits)
            && let Ok(number) = after[..digits].parse()
        {
            return (&name[..at], Some(number), &after[digits..]);
        }
    }
    match name.rfind('.').filter(|at| *at > 0) {
        Some(at) => (&name[..at], None, &name[at..]),
        None => (name, None, ""),
    }
}

/// The name with a number; without one on the server, the first keeps its name and the others get `name (1).png`.
fn numbered_output(prefix: &str, is_numbered: bool, number: u32, rest: &str) -> String {
    match (is_numbered, number) {
        (true, number) => format!("{prefix}_{number:05}{rest}"),
        (false, 0 | 1) => format!("{prefix}{rest}"),
        (false, number) => format!("{prefix} ({}){rest}", number - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_a_name_is_replaced_and_the_rest_stays() {
        for (name, next, expected) in [
            ("ComfyUI_00001_.png", 7, "ComfyUI_00007_.png"),
            ("a_00003_b_00001_.png", 2, "a_00003_b_00002_.png"),
            ("clip_00001.mp4", 12, "clip_00012.mp4"),
            ("clip_00001-audio.mp4", 12, "clip_00012-audio.mp4"),
            ("x_99999_.png", 100_000, "x_100000_.png"),
            ("mesh.glb", 1, "mesh.glb"),
            ("mesh.glb", 2, "mesh (1).glb"),
            ("noending", 3, "noending (2)"),
            (".png", 2, ".png (1)"),
        ] {
            let (prefix, number, rest) = split_number(name);
            assert_eq!(numbered_output(prefix, number.is_some(), next, rest), expected);
        }
        assert_eq!(
            split_number("a_1234_.png"),
            ("a_1234_", None, ".png"),
            "too short for a number of ComfyUI"
        );
    }

    #[test]
    fn file_without_a_name_is_found_in_the_folder_of_its_job() {
        let file =
            |name: &str| ServerFile { node: "3".to_owned(), key: "images".to_owned(), name: name.to_owned() };
        let shown = ClientName { folder: "cats".to_owned(), name: "x_00002_.png".to_owned() };
        let names = JobNames(BTreeMap::from([(file("x_00001_.png"), shown)]));
        let job = JobId::from_u128(7);
        let reference = |name: &str| names.file_ref(job, &file(name), "output");
        assert_eq!(
            reference("x_00001_.png"),
            serde_json::json!({"filename": "x_00002_.png", "subfolder": "cats", "type": "output"})
        );
        assert_eq!(reference("other.png")["subfolder"], format!("{job}/3"));
    }
}
