//! Outputs of jobs as assets. Nothing is stored for them: the id of an output is derived from its job's id and leads back to it.
//!
//! ```text
//!   0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11   the job
//!   0193e7a0-5b1c-8d52-9c7e-0a4b7xxxxxxx   its output: version 8, the version of the job id, 28 bits of content hash
//! ```
//!
//! The first 96 bits are those of the job, and generated job ids differ in them; if a client chose ids that share them, all
//! are searched. The id stays the same while outputs arrive and after a restart. The outputs of a lost attempt disappear with
//! it; the next attempt produces them again.

use remuda_core::id::JobId;
use remuda_store::JobFilter;
use remuda_store::blobs::BlobHash;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::{ApiError, Caller, Context};
use super::asset::{Asset, AssetMeta};
use super::job::JobTimes;
use super::links::Links;

const VERSION_AT: u32 = 76;
const OWN_BITS: u32 = 32;
const OWN: u128 = (1 << OWN_BITS) - 1;
/// Jobs whose ids share 96 bits; all but one were chosen by clients.
const CANDIDATES_MAX: usize = 16;

#[derive(Clone, Debug)]
pub(super) struct JobOutput {
    pub(super) id: Uuid,
    node: String,
    name: String,
    content_type: String,
    size_bytes: u64,
    hash: BlobHash,
    /// The text, if the output is part of the result and not a file.
    text: Option<String>,
}

/// A file as workers report it.
#[derive(Deserialize)]
struct ListedFile {
    node: String,
    #[serde(default)]
    key: String,
    name: String,
    #[serde(default)]
    media: String,
    hash: BlobHash,
    size_bytes: u64,
}

#[derive(Deserialize)]
struct NodeTexts {
    node: String,
    #[serde(default)]
    key: String,
    value: Box<RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResultLists {
    outputs: Vec<Box<RawValue>>,
    values: Vec<Box<RawValue>>,
}

impl JobOutput {
    fn new(job: JobId, key: &str, output: JobOutput) -> JobOutput {
        let identity = [&output.node, key, &output.name, &output.hash.to_string()].join("\0");
        let digits = &BlobHash::from_content(identity.as_bytes()).hex()[..7];
        let digest = u128::from_str_radix(digits, 16).unwrap_or_default();
        let job = job.as_u128();
        let version = job >> VERSION_AT & 0xf;
        let first = job & !OWN & !(0xf << VERSION_AT) | 8 << VERSION_AT;
        JobOutput { id: Uuid::from_u128(first | version << (OWN_BITS - 4) | digest), ..output }
    }

    fn file(job: JobId, listed: &RawValue) -> Option<JobOutput> {
        let ListedFile { node, key, name, media, hash, size_bytes } =
            serde_json::from_str(listed.get()).ok()?;
        let content_type = if media.contains('/') { media } else { "application/octet-stream".to_owned() };
        let id = Uuid::nil();
        Some(JobOutput::new(
            job,
            &key,
            JobOutput { id, node, name, content_type, size_bytes, hash, text: None },
        ))
    }

    /// Each text is an output; any other value is one JSON output.
    fn texts(job: JobId, given: &RawValue) -> Vec<JobOutput> {
        let Ok(NodeTexts { node, key, value }) = serde_json::from_str(given.get()) else { return Vec::new() };
        let (ending, content_type, texts) = match serde_json::from_str::<Vec<String>>(value.get()) {
            Ok(texts) => ("txt", "text/plain; charset=utf-8", texts),
            Err(_) => match serde_json::from_str::<String>(value.get()) {
                Ok(text) => ("txt", "text/plain; charset=utf-8", vec![text]),
                Err(_) => ("json", "application/json", vec![value.get().to_owned()]),
            },
        };
        let outputs = texts.into_iter().enumerate().map(|(at, text)| {
            let output = JobOutput {
                id: Uuid::nil(),
                node: node.clone(),
                name: format!("{node}_{key}_{:05}.{ending}", at + 1),
                content_type: content_type.to_owned(),
                size_bytes: text.len() as u64,
                hash: BlobHash::from_content(text.as_bytes()),
                text: Some(text),
            };
            JobOutput::new(job, &key, output)
        });
        outputs.collect()
    }

    fn kind(&self) -> &'static str {
        let kind = self.content_type.split('/').next().unwrap_or_default();
        match kind {
            "image" => "image",
            "video" => "video",
            "audio" => "audio",
            "text" => "text",
            _ if self.text.is_some() => "text",
            _ if self.name.ends_with(".latent") => "latent",
            _ => "file",
        }
    }

    pub(super) fn to_json(&self, job: JobId, times: JobTimes, links: &Links) -> Value {
        json!({
            "node_id": self.node,
            "name": self.name,
            "type": self.kind(),
            "content_type": self.content_type,
            "size_bytes": self.size_bytes,
            "id": self.id.to_string(),
            "hash": self.hash,
            "url": links.content(self.id),
            "url_expires_at": times.expires_at.to_string(),
            "job_id": job.to_string(),
        })
    }
}

/// The outputs listed in a result.
pub(super) fn from_result(job: JobId, result: &RawValue) -> Vec<JobOutput> {
    // Results of other services have another format and no outputs of this kind.
    let ResultLists { outputs, values } = serde_json::from_str(result.get()).unwrap_or_default();
    let files = outputs.iter().filter_map(|listed| JobOutput::file(job, listed));
    files.chain(values.iter().flat_map(|given| JobOutput::texts(job, given))).collect()
}

/// Outputs that the running attempt has stored so far.
pub(super) fn live_outputs(context: &Context, job: JobId) -> Vec<JobOutput> {
    let listed = context.live_attempts.find(job).map(|doing| doing.outputs).unwrap_or_default();
    listed.iter().filter_map(|listed| JobOutput::file(job, listed)).collect()
}

/// True if the id was derived from a job id.
pub(super) fn is_output_id(id: Uuid) -> bool {
    id.get_version_num() == 8
}

/// The output with this id, of a job that the caller may see.
pub(super) async fn find(context: &Context, caller: &Caller, id: Uuid) -> Result<Option<Asset>, ApiError> {
    let id = id.as_u128();
    let version = id >> (OWN_BITS - 4) & 0xf;
    let first = id & !OWN & !(0xf << VERSION_AT) | version << VERSION_AT;
    let Some(behind) = (first | OWN).checked_add(1) else { return Ok(None) };
    let jobs =
        context.store.jobs(JobFilter::default(), Some(JobId::from_u128(behind)), CANDIDATES_MAX).await?;
    for (accepted, life) in jobs {
        if accepted.id.as_u128() < first || !caller.may_see(&accepted.tenant) {
            continue;
        }
        let job = accepted.id;
        let outputs = match context.store.result(job).await? {
            Some(result) => from_result(job, &result),
            None => live_outputs(context, job),
        };
        let Some(output) = outputs.into_iter().find(|output| output.id.as_u128() == id) else { continue };
        let times = JobTimes::new(accepted.accepted_at, &life, context.retention);
        let meta = AssetMeta {
            size_bytes: output.size_bytes,
            content_type: output.content_type,
            file_path: Some(output.name),
            tags: Vec::new(),
            created_at: times.completed_at.unwrap_or(accepted.accepted_at),
        };
        return Ok(Some(Asset {
            id: output.id,
            tenant: accepted.tenant,
            hash: output.hash,
            expires_at: Some(times.expires_at),
            meta,
            job: Some(job),
            text: output.text,
        }));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_id_is_derived_from_job_and_content() {
        let job: JobId = "0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11".parse().unwrap();
        let listed = |name: &str| {
            let hash = BlobHash::from_content(b"x");
            format!(
                r#"{{"node":"9","key":"images","name":"{name}","media":"image/png","hash":"{hash}","size_bytes":1}}"#
            )
        };
        let result = format!(
            r#"{{"outputs":[{},{},{{"odd":1}}],"values":[{{"node":"3","key":"text","value":["a","b"]}},
                {{"node":"4","key":"size","value":[1,2]}}]}}"#,
            listed("a.png"),
            listed("b.png"),
        );
        let result = RawValue::from_string(result).unwrap();
        let outputs = from_result(job, &result);
        let shown: Vec<_> = outputs.iter().map(|it| (it.name.as_str(), it.kind())).collect();
        let expected = [
            ("a.png", "image"),
            ("b.png", "image"),
            ("3_text_00001.txt", "text"),
            ("3_text_00002.txt", "text"),
            ("4_size_00001.json", "text"),
        ];
        assert_eq!(shown, expected);
        for output in &outputs {
            let id = output.id.to_string();
            assert!(id.starts_with("0193e7a0-5b1c-8d52-9c7e-0a4b7"), "{id}");
            assert!(is_output_id(output.id) && !is_output_id(Uuid::new_v4()));
        }
        // The same file alone, reported before the others.
        let alone = JobOutput::file(job, &RawValue::from_string(listed("b.png")).unwrap()).unwrap();
        assert_eq!(alone.id, outputs[1].id);
    }
}
