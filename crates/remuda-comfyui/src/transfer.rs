//! Files out of a server and into it, as streams: a video does not fit into memory.

use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, StatusCode, multipart};
use serde::Deserialize;

use super::client::{Client, Error, refused, unreadable};
use super::json;
use super::outputs::File;

/// A transfer may take as long as it likes while it moves; a stop of this length is the end of it.
const STALL_MAX: Duration = Duration::from_secs(30);

/// A file on its way from the server.
#[derive(Debug)]
pub struct Download {
    /// Known unless a proxy in between packs what it passes on.
    pub length: Option<u64>,
    response: reqwest::Response,
    read: u64,
}

impl Download {
    /// The next piece, or none at the end. A file that breaks off before its length is an error.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        let chunk = match tokio::time::timeout(STALL_MAX, self.response.chunk()).await {
            Err(_) => return Err(Error::Timeout(STALL_MAX)),
            Ok(Err(error)) => return Err(Error::Broken(error.without_url().to_string())),
            Ok(Ok(chunk)) => chunk,
        };
        match &chunk {
            Some(chunk) => self.read += chunk.len() as u64,
            None if self.length.is_some_and(|length| length != self.read) => {
                return Err(Error::Broken(format!("the file ended after {} bytes", self.read)));
            }
            None => {}
        }
        Ok(chunk)
    }
}

impl Client {
    /// [`Error::NotFound`] if it is listed but not there: the temporary folder is wiped at every start.
    pub async fn view(&self, file: &File) -> Result<Download, Error> {
        let query = [("filename", &*file.filename), ("subfolder", &*file.subfolder), ("type", &*file.kind)];
        // Not a time limit on the request: that one would bound the whole download.
        let asked = self.request(Method::GET, "view")?.query(&query).send();
        let response = match tokio::time::timeout(STALL_MAX, asked).await {
            Err(_) => return Err(Error::Timeout(STALL_MAX)),
            Ok(answer) => answer.map_err(|error| self.failed(&error, STALL_MAX))?,
        };
        match response.status() {
            StatusCode::OK => Ok(Download { length: response.content_length(), response, read: 0 }),
            StatusCode::NOT_FOUND => Err(Error::NotFound(format!("file {:?}", file.path()))),
            status => Err(refused(status, "view", b"")),
        }
    }

    /// Puts a file into the input folder and says under which name a workflow finds it there. `name` must tell the content
    /// (see [`Asset::name`](super::Asset::name)): then a second upload writes nothing, and nobody else's file is in the way.
    pub async fn upload(
        &self,
        name: &str,
        content: impl Into<reqwest::Body>,
        length: u64,
    ) -> Result<String, Error> {
        const PATH: &str = "upload/image";
        let part = multipart::Part::stream_with_length(content, length).file_name(name.to_owned());
        let form = multipart::Form::new().part("image", part).text("type", "input");
        let request = self.request(Method::POST, PATH)?.multipart(form);
        let (status, body) = self.exchange(PATH, request, self.timeout_for(length)).await?;
        if status != StatusCode::OK {
            return Err(refused(status, PATH, &body));
        }
        let stored: Stored = json::read(&body).map_err(|error| unreadable(PATH, &error.to_string()))?;
        Ok(stored.path())
    }
}

/// It may have stored the file under another name than we asked for.
#[derive(Deserialize)]
struct Stored {
    name: String,
    #[serde(default)]
    subfolder: String,
}

impl Stored {
    fn path(self) -> String {
        if self.subfolder.is_empty() { self.name } else { format!("{}/{}", self.subfolder, self.name) }
    }
}
