//! Blobs: streamed in and out, stored completely or not at all, and removed when they expire.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use remuda_store::blobs::BlobHash;
use remuda_worker::{BlobLink, BlobLinkError};
use reqwest::{Method, StatusCode, header};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{
    Plane, Process, Raw, ScriptedWorker, WAIT_MAX, answered, assert_contains_all, remuda, sleep_for,
    wait_until,
};

/// Bytes that do not repeat.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut noise = Vec::with_capacity(bytes + 8);
    while noise.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        noise.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    noise.truncate(bytes);
    noise
}

fn path(hash: &BlobHash) -> String {
    format!("/remuda/v1/blobs/{hash}")
}

fn folder(plane: &Plane) -> PathBuf {
    plane.store().with_file_name("blobs")
}

fn file(plane: &Plane, hash: &BlobHash) -> PathBuf {
    let hex = hash.hex();
    folder(plane).join(&hex[..2]).join(&hex[2..])
}

/// How many files there are below a folder, the lock left out.
fn files(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { files(&path) } else { usize::from(!path.ends_with("lock")) }).sum()
}

async fn put(plane: &Plane, content: &[u8]) -> BlobHash {
    let (status, answer) =
        answered(plane.request(Method::POST, "/remuda/v1/blobs").body(content.to_vec())).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    let hash = BlobHash::from_content(content);
    assert_eq!((&answer["hash"], &answer["size_bytes"]), (&json!(hash), &json!(content.len())));
    hash
}

/// The beginning of an upload by hand.
async fn raw_put(plane: &Plane, hash: &BlobHash, headers: &str) -> Raw {
    let mut raw = Raw::open(plane.address).await;
    raw.send(&format!(
        "PUT {} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n\r\n",
        path(hash)
    ))
    .await;
    raw
}

/// The most memory the plane ever had, in bytes.
fn memory_peak(plane: &Plane) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", plane.process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Faults: B8.
#[tokio::test]
async fn large_blob_streams_in_little_memory() {
    let plane = Plane::start(&[]).await;
    let content = noise(50 << 20);
    let hash = BlobHash::from_content(&content);
    plane.get("/health/live").await;
    let before = memory_peak(&plane);
    let (status, answer) = answered(plane.request(Method::PUT, &path(&hash)).body(content.clone())).await;
    assert_eq!((status, &answer["created"]), (StatusCode::CREATED, &json!(true)), "{answer}");
    let response = plane.request(Method::GET, &path(&hash)).send().await.unwrap();
    assert_eq!(response.content_length(), Some(content.len() as u64));
    assert!(response.bytes().await.unwrap() == content, "what came back is something else");
    let grown = memory_peak(&plane) - before;
    eprintln!("50 MiB in and out: {} KiB more memory at most", grown >> 10);
    assert!(grown < 25 << 20, "the plane grew by {grown} bytes");
    assert_eq!(files(&folder(&plane)), 1);
}

/// Faults: V19, B6.
#[tokio::test]
async fn invalid_upload_leaves_no_file() {
    let plane = Plane::start(&["blobs.bytes_max=64KiB"]).await;
    let hash = BlobHash::from_content(b"horse");
    let (status, answer) = answered(plane.request(Method::PUT, &path(&hash)).body("cow")).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("hash_mismatch"))
    );
    assert_eq!(answer["error"]["detail"]["hash"], json!(BlobHash::from_content(b"cow")));

    // Not a byte of the body ever comes.
    let (status, error) = raw_put(&plane, &hash, "content-length: 65537").await.refusal().await;
    assert_eq!((status, &error["code"]), (413, &json!("too_large")));
    assert_contains_all(error["message"].as_str().unwrap(), &["65536 bytes", "blobs.bytes_max"]);
    // A body that does not say how large it is, in pieces of 16 KiB.
    let mut raw = raw_put(&plane, &hash, "transfer-encoding: chunked").await;
    for _ in 0..5 {
        raw.send(&format!("4000\r\n{}\r\n", "x".repeat(0x4000))).await;
    }
    assert_eq!(raw.refusal().await.0, 413);
    // One that breaks off.
    let mut raw = raw_put(&plane, &hash, "content-length: 5").await;
    raw.send("hor").await;
    drop(raw);

    wait_until("nothing is left of them", async || (files(&folder(&plane)) == 0).then_some(())).await;
    let missing = plane.request(Method::HEAD, &path(&hash)).send().await.unwrap();
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    assert_eq!(put(&plane, b"horse").await, hash);
}

#[tokio::test]
async fn existing_blob_is_acknowledged_without_upload() {
    let plane = Plane::start(&[]).await;
    let hash = put(&plane, b"horse").await;
    // Small ones are taken in, so that the line stays usable; of a large one not a byte is waited for.
    let (status, answer) = answered(plane.request(Method::PUT, &path(&hash)).body("horse")).await;
    assert_eq!((status, &answer["created"]), (StatusCode::OK, &json!(false)));
    let (status, _) = raw_put(&plane, &hash, "content-length: 1000000000").await.refusal().await;
    assert_eq!(status, 200);
    assert_eq!(files(&folder(&plane)), 1);
}

/// Faults: X6, B9.
#[tokio::test]
async fn invalid_blob_name_is_refused() {
    let plane = Plane::start(&[]).await;
    let secret = plane.folder().join("secret");
    fs::write(&secret, "secret").unwrap();
    let digits = "ab".repeat(32);
    for name in [
        "..%2f..%2fsecret".to_owned(),
        "%2e%2e".to_owned(),
        "lock".to_owned(),
        "tmp%2fx".to_owned(),
        "blake3:..%2f..%2f..%2fsecret".to_owned(),
        format!("blake3:{}", digits.to_uppercase()),
        format!("blake3:{}%00", &digits[1..]),
        format!("blake3:%2e%2e%2f{}", &digits[3..]),
        digits.clone(),
        "x".repeat(4096),
    ] {
        for method in [Method::GET, Method::PUT] {
            let mut raw = Raw::open(plane.address).await;
            let head = format!(
                "{method} /remuda/v1/blobs/{name} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            );
            raw.send(&format!("{head}content-length: 4\r\n\r\nevil")).await;
            let (status, error) = raw.refusal().await;
            assert_eq!((status, &error["code"]), (400, &json!("bad_request")), "{method} {name}: {error}");
        }
    }
    assert_eq!(files(&folder(&plane)), 0);
    assert_eq!(fs::read_to_string(secret).unwrap(), "secret");
}

/// Asks for a blob with these headers; the status and whole answer.
async fn get(plane: &Plane, path: &str, headers: &[(&str, &str)]) -> (u16, header::HeaderMap, Vec<u8>) {
    let mut request = plane.request(Method::GET, path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    (status, headers, response.bytes().await.unwrap().to_vec())
}

#[tokio::test]
async fn range_requests_return_parts() {
    let plane = Plane::start(&[]).await;
    let content = noise(1_000_000);
    let hash = put(&plane, &content).await;
    let etag = format!("\"{hash}\"");
    let (status, headers, body) = get(&plane, &path(&hash), &[("range", "bytes=300000-799999")]).await;
    assert_eq!((status, &headers["content-range"]), (206, &"bytes 300000-799999/1000000".parse().unwrap()));
    assert!(body == content[300_000..800_000]);
    let (status, headers, body) =
        get(&plane, &path(&hash), &[("range", "bytes=-10"), ("if-range", &etag)]).await;
    assert_eq!(
        (status, headers["content-length"].to_str().unwrap(), &body[..]),
        (206, "10", &content[999_990..])
    );
    let (status, _, body) =
        get(&plane, &path(&hash), &[("range", "bytes=-10"), ("if-range", "\"old\"")]).await;
    assert_eq!((status, body.len()), (200, 1_000_000));
    let (status, headers, body) = get(&plane, &path(&hash), &[("range", "bytes=1000000-")]).await;
    assert_eq!((status, headers["content-range"].to_str().unwrap()), (416, "bytes */1000000"));
    let problem: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(problem["error"]["code"], "range_not_satisfiable");
    let (status, headers, body) = get(&plane, &path(&hash), &[("if-none-match", &etag)]).await;
    assert_eq!((status, headers["etag"].to_str().unwrap(), body.len()), (304, etag.as_str(), 0));
    let head = plane.request(Method::HEAD, &path(&hash)).send().await.unwrap();
    assert_eq!(
        (head.status(), &head.headers()["content-length"]),
        (StatusCode::OK, &"1000000".parse().unwrap())
    );
}

/// Faults: X7, B9.
#[tokio::test]
async fn blobs_are_served_as_attachments() {
    let plane = Plane::start(&[]).await;
    let hash = put(&plane, b"<script>alert(1)</script>").await;
    for (name, expected) in [
        ("", "application/octet-stream"),
        ("?name=a.html", "application/octet-stream"),
        ("?name=a.svg", "application/octet-stream"),
        ("?name=a.png", "image/png"),
        ("?name=..%2F..%2Fa%0D%0Ax:y.MP4", "video/mp4"),
    ] {
        let (status, headers, _) = get(&plane, &format!("{}{name}", path(&hash)), &[]).await;
        assert_eq!((status, headers["content-type"].to_str().unwrap()), (200, expected), "{name}");
        let disposition = headers["content-disposition"].to_str().unwrap();
        assert!(disposition.starts_with("attachment") && !disposition.contains('/'), "{disposition}");
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_contains_all(
            headers["content-security-policy"].to_str().unwrap(),
            &["default-src 'none'", "sandbox"],
        );
        assert!(!headers.contains_key("x"));
    }
}

/// Faults: B7.
#[tokio::test]
async fn compressed_upload_is_stored_unchanged() {
    let plane = Plane::start(&["blobs.bytes_max=64KiB"]).await;
    let pack = Command::new("sh").args(["-c", "head -c 50000000 /dev/zero | gzip -9"]).output().unwrap();
    let bomb = pack.stdout;
    assert!(bomb.len() > 10_000 && bomb.len() < 64 << 10, "{} bytes", bomb.len());
    let hash = BlobHash::from_content(&bomb);
    let put = plane.request(Method::PUT, &path(&hash)).header("content-encoding", "gzip").body(bomb.clone());
    assert_eq!(answered(put).await.0, StatusCode::CREATED);
    let (_, headers, body) = get(&plane, &path(&hash), &[("accept-encoding", "gzip")]).await;
    assert!(body == bomb && !headers.contains_key("content-encoding"));
}

/// Faults: C1, D4.
#[tokio::test]
async fn kill_during_upload_leaves_no_blob() {
    let mut plane = Plane::start(&[]).await;
    let content = "x".repeat(4 << 20);
    let hash = BlobHash::from_content(content.as_bytes());
    let kept = put(&plane, b"horse").await;
    let mut raw = raw_put(&plane, &hash, &format!("content-length: {}", content.len())).await;
    raw.send(&content[..content.len() - 1]).await;
    let tmp = folder(&plane).join("tmp");
    wait_until("a part is on disk", async || {
        let mut sizes = fs::read_dir(&tmp).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
        sizes.next().filter(|size| *size > 3 << 20)
    })
    .await;
    plane.kill();
    assert_eq!(files(&tmp), 1, "the test should have caught it in the middle");
    plane.start_again().await;
    assert_eq!(files(&folder(&plane)), 1);
    assert_eq!(get(&plane, &path(&hash), &[]).await.0, 404);
    assert_eq!(get(&plane, &path(&kept), &[]).await.2, b"horse");
    assert_eq!(put(&plane, content.as_bytes()).await, hash);
}

/// Faults: B6.
#[tokio::test]
async fn stalled_upload_times_out_and_slow_one_does_not() {
    let plane = Plane::start(&["blobs.upload_idle_timeout=2s"]).await;
    let content = "x".repeat(3 * 300_000);
    let hash = BlobHash::from_content(content.as_bytes());
    let length = format!("content-length: {}", content.len());
    let begun_at = Instant::now();
    let mut silent = raw_put(&plane, &hash, &length).await;
    silent.send("xxx").await;
    // A byte now and then is no reason to wait for ever.
    let dripping = raw_put(&plane, &hash, &length).await;
    let (mut reader, mut writer) = dripping.0.into_split();
    let drip = async {
        while writer.write_all(b"x").await.is_ok() {
            sleep_for(Duration::from_millis(100)).await;
        }
    };
    let mut told = String::new();
    let answer = async {
        // Cut or closed, it has ended.
        reader.read_to_string(&mut told).await.ok();
    };
    let all = async { tokio::join!(silent.refusal(), drip, answer) };
    let (silent, (), ()) = tokio::time::timeout(WAIT_MAX, all).await.expect("both should be given up");
    assert_eq!((silent.0, &silent.1["code"]), (408, &json!("too_slow")));
    assert!(told.starts_with("HTTP/1.1 408"), "{told}");
    assert!(begun_at.elapsed() < Duration::from_secs(20), "it took {:?}", begun_at.elapsed());
    assert_eq!(files(&folder(&plane)), 0);

    // Longer than the pause in all, and always going on.
    let mut slow = raw_put(&plane, &hash, &length).await;
    for _ in 0..3 {
        slow.send(&content[..300_000]).await;
        sleep_for(Duration::from_millis(1200)).await;
    }
    assert_eq!(slow.refusal().await.0, 201);
}

#[tokio::test]
async fn concurrent_uploads_are_capped() {
    let plane = Plane::start(&[]).await;
    let hash = BlobHash::from_content(b"horse");
    let mut open = Vec::new();
    for _ in 0..64 {
        let mut raw = raw_put(&plane, &hash, "content-length: 5").await;
        raw.send("hors").await;
        open.push(raw);
    }
    let tmp = folder(&plane).join("tmp");
    wait_until("all of them are on their way", async || (files(&tmp) == 64).then_some(())).await;
    let refused = plane.request(Method::POST, "/remuda/v1/blobs").body("cow").send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.headers().contains_key(header::RETRY_AFTER));
    assert_contains_all(&refused.text().await.unwrap(), &["too_many_uploads"]);
    // One that ends makes room; who waits a moment gets in.
    drop(open.pop());
    let link = BlobLink::new(&plane.url, "");
    assert_eq!(link.store_bytes("cow".into()).await.unwrap().1, 3);
}

/// Sets the clock of a blob's file back.
fn age(plane: &Plane, hash: &BlobHash, days: u64) {
    let at = SystemTime::now() - Duration::from_secs(days * 24 * 60 * 60);
    File::open(file(plane, hash)).unwrap().set_modified(at).unwrap();
}

#[tokio::test]
async fn expired_blobs_are_removed() {
    let mut plane = Plane::start(&["retention=7d"]).await;
    let mut hashes = Vec::new();
    for name in ["unused", "an input", "an output", "read", "put again", "a week old"] {
        hashes.push(put(&plane, name.as_bytes()).await);
    }
    let [unwanted, input, output, read, again, recent] = hashes[..] else { unreachable!() };
    for hash in &hashes {
        age(&plane, hash, if *hash == recent { 7 } else { 9 });
    }
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    let workflow = json!({ "picture": { "__type": "core/ASSET", "info": { "hash": input } } });
    plane.submit(workflow).await;
    let attempt = hand.take().await;
    assert_eq!(hand.complete(&attempt, json!({ "pictures": [output] })).await, "recorded");
    get(&plane, &path(&read), &[]).await;
    answered(plane.request(Method::PUT, &path(&again)).body("put again")).await;

    plane.stop().await;
    plane.start_again().await;
    wait_until("the one is gone", async || (!file(&plane, &unwanted).exists()).then_some(())).await;
    assert!(plane.process.line("unused blobs deleted").await.is_some());
    for kept in [input, output, read, again, recent] {
        assert_eq!(get(&plane, &path(&kept), &[]).await.0, 200);
    }
}

/// Runs `remuda blobs` to its end; its code and what it said.
async fn run(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let mut process = Process::start("remuda blobs", remuda(folder).arg("blobs").args(arguments));
    (process.ended().await.code().unwrap(), process.said())
}

#[tokio::test]
async fn blob_commands_put_and_get_files() {
    let plane = Plane::start(&[]).await;
    let folder = plane.folder().to_owned();
    let (url, content) = (plane.url.as_str(), noise(2_000_000));
    let hash = BlobHash::from_content(&content).to_string();
    fs::write(folder.join("photo.png"), &content).unwrap();
    assert_eq!(run(&folder, &["put", "photo.png", "--url", url]).await, (0, hash.clone()));
    let (code, said) = run(&folder, &["put", "photo.png", "--url", url, "--json"]).await;
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, said), (0, json!({ "hash": hash, "size_bytes": 2_000_000 })));
    let (code, said) = run(&folder, &["get", &hash, "-o", "copy.png", "--url", url]).await;
    assert_eq!((code, said.as_str()), (0, "2000000 bytes in copy.png"));
    assert!(fs::read(folder.join("copy.png")).unwrap() == content);

    let other = BlobHash::from_content(b"other").to_string();
    let (code, said) = run(&folder, &["get", &other, "-o", "other", "--url", url]).await;
    assert_eq!(code, 1);
    assert_contains_all(&said, &["the plane has no blob blake3:"]);
    let (code, said) = run(&folder, &["put", "nothing.png", "--url", url]).await;
    assert_eq!(code, 1);
    assert_contains_all(&said, &["cannot store nothing.png", "No such file"]);
    let (code, said) = run(&folder, &["get", "../photo.png", "--url", url]).await;
    assert_eq!(code, 2);
    assert_contains_all(&said, &["is not the name of a blob"]);
    let (code, said) = run(&folder, &["put", "photo.png", "--url", "http://127.0.0.1:1"]).await;
    assert_eq!(code, 3);
    assert_contains_all(&said, &["cannot reach the plane"]);
    let names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        !names.iter().any(|name| name == "other" || name.to_string_lossy().ends_with(".part")),
        "{names:?}"
    );
}

/// Faults: A14.
#[tokio::test]
async fn worker_stores_output_after_plane_was_away() {
    let mut plane = Plane::start(&[]).await;
    let content = noise(3_000_000);
    let output = plane.folder().join("output");
    fs::write(&output, &content).unwrap();
    let link = BlobLink::new(&plane.url, "");
    plane.kill();
    let storing = tokio::spawn({
        let (link, output) = (link.clone(), output.clone());
        async move { link.store(&output).await }
    });
    sleep_for(Duration::from_millis(300)).await;
    plane.start_again().await;
    let (hash, size) = storing.await.unwrap().unwrap();
    assert_eq!((hash, size), (BlobHash::from_content(&content), 3_000_000));
    // Again, as after a lost answer; and back.
    assert_eq!(link.store_bytes(content.clone().into()).await.unwrap(), (hash, size));
    let copy = plane.folder().join("copy");
    assert_eq!(link.fetch(&hash, &copy).await.unwrap(), size);
    assert!(fs::read(copy).unwrap() == content);
    assert!(link.fetch_bytes(&hash, 4_000_000).await.unwrap() == content);
    let too_large = link.fetch_bytes(&hash, 1_000_000).await.unwrap_err();
    assert!(matches!(too_large, BlobLinkError::TooLarge { bytes_max: 1_000_000, .. }), "{too_large}");
}

/// Takes one request after another; what `answer` makes of each goes back, and the line is closed.
async fn serve_by_hand(answer: impl Fn(usize, &str) -> Vec<u8> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        for n in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let head = read_head(&mut stream).await;
            stream.write_all(&answer(n, &head)).await.ok();
        }
    });
    url
}

async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        head.push(char::from(stream.read_u8().await.unwrap()));
    }
    head
}

/// Faults: V19.
#[tokio::test]
async fn interrupted_download_resumes_and_corrupt_one_is_refused() {
    let content = noise(100_000);
    let hash = BlobHash::from_content(&content);
    let whole = content.clone();
    let url = serve_by_hand(move |n, head| {
        let range = head.lines().find_map(|line| line.strip_prefix("range: bytes="));
        let (start, status) = match range.and_then(|range| range.strip_suffix('-')) {
            Some(start) => (start.parse::<usize>().unwrap(), "206 Partial Content"),
            None => (0, "200 OK"),
        };
        assert!(n == 0 || start > 0, "it started from the beginning: {head}");
        let rest = &whole[start..];
        let head =
            format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", rest.len());
        [head.as_bytes(), &rest[..rest.len().min(30_000)]].concat()
    });
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("picture");
    assert_eq!(BlobLink::new(&url.await, "").fetch(&hash, &into).await.unwrap(), 100_000);
    assert!(fs::read(&into).unwrap() == content);
    fs::remove_file(&into).unwrap();

    let url = serve_by_hand(|_, _| {
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: close\r\n\r\ncow".to_vec()
    });
    let link = BlobLink::new(&url.await, "");
    let wrong = link.fetch(&hash, &into).await.unwrap_err();
    assert!(
        matches!(wrong, BlobLinkError::Wrong { actual, .. } if actual == BlobHash::from_content(b"cow")),
        "{wrong}"
    );
    assert!(matches!(link.fetch_bytes(&hash, 100).await.unwrap_err(), BlobLinkError::Wrong { .. }));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
