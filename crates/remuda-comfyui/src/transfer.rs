//! Downloads and uploads as streams, because a video does not fit into memory.

use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, StatusCode, multipart};
use serde::Deserialize;

use super::client::ComfyuiClient;
use super::error::{ComfyuiError, refused, unreadable};
use super::json;
use super::outputs::OutputFile;

/// A transfer has no total timeout, but a pause of this length ends it.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A download in progress.
#[derive(Debug)]
pub struct Download {
    /// Unknown if a proxy compresses the response.
    pub length: Option<u64>,
    response: reqwest::Response,
    read: u64,
}

impl Download {
    /// The next chunk, or `None` at the end. A file that is shorter than announced is an error.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ComfyuiError> {
        let chunk = match tokio::time::timeout(STALL_TIMEOUT, self.response.chunk()).await {
            Err(_) => return Err(ComfyuiError::Timeout(STALL_TIMEOUT)),
            Ok(Err(error)) => return Err(ComfyuiError::Broken(error.without_url().to_string())),
            Ok(Ok(chunk)) => chunk,
        };
        match &chunk {
            Some(chunk) => self.read += chunk.len() as u64,
            None if self.length.is_some_and(|length| length != self.read) => {
                return Err(ComfyuiError::Broken(format!("the file ended after {} bytes", self.read)));
            }
            None => {}
        }
        Ok(chunk)
    }
}

impl ComfyuiClient {
    /// [`ComfyuiError::NotFound`] if the file is listed but missing: ComfyUI empties its temporary folder at every start.
    pub async fn download(&self, file: &OutputFile) -> Result<Download, ComfyuiError> {
        let query = [("filename", &*file.filename), ("subfolder", &*file.subfolder), ("type", &*file.kind)];
        // A timeout of the request itself would apply to the whole download.
        let request = self.request(Method::GET, "view")?.query(&query).send();
        let response = match tokio::time::timeout(STALL_TIMEOUT, request).await {
            Err(_) => return Err(ComfyuiError::Timeout(STALL_TIMEOUT)),
            Ok(answer) => answer.map_err(|error| self.failed(&error, STALL_TIMEOUT))?,
        };
        match response.status() {
            StatusCode::OK => Ok(Download { length: response.content_length(), response, read: 0 }),
            StatusCode::NOT_FOUND => Err(ComfyuiError::NotFound(format!("file {:?}", file.display_path()))),
            status => Err(refused(status, "view", b"")),
        }
    }

    /// Uploads a file to the input folder and returns the name by which a workflow loads it. `name` must identify the content
    /// (see [`AssetRef::upload_name`](super::AssetRef::upload_name)): then a repeated upload changes nothing and no other file has the same name.
    pub async fn upload(
        &self,
        name: &str,
        content: impl Into<reqwest::Body>,
        length: u64,
    ) -> Result<String, ComfyuiError> {
        const PATH: &str = "upload/image";
        let part = multipart::Part::stream_with_length(content, length).file_name(name.to_owned());
        let form = multipart::Form::new().part("image", part).text("type", "input");
        let request = self.request(Method::POST, PATH)?.multipart(form);
        let (status, body) = self.exchange(PATH, request, self.timeout_for(length)).await?;
        if status != StatusCode::OK {
            return Err(refused(status, PATH, &body));
        }
        let stored: StoredFile = json::parse(&body).map_err(|error| unreadable(PATH, &error.to_string()))?;
        Ok(stored.path())
    }
}

/// ComfyUI may store the file under a different name than requested.
#[derive(Deserialize)]
struct StoredFile {
    name: String,
    #[serde(default)]
    subfolder: String,
}

impl StoredFile {
    fn path(self) -> String {
        if self.subfolder.is_empty() { self.name } else { format!("{}/{}", self.subfolder, self.name) }
    }
}
