//! Uploads, refusals, deletion and recovery of blobs.

use std::path::Path;

use futures_util::TryStreamExt;
use tempfile::TempDir;

use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_794_744_190_042);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

async fn blobs(bytes_max: u64) -> (TempDir, BlobStore) {
    let folder = tempfile::tempdir().unwrap();
    let blobs = BlobStore::open(folder.path().join("blobs"), bytes_max).await.unwrap();
    (folder, blobs)
}

async fn put(blobs: &BlobStore, content: &[u8], expected: Option<BlobHash>) -> Result<StoredBlob, BlobError> {
    let mut upload = blobs.begin_upload().await?;
    for chunk in content.chunks(100_000) {
        upload = upload.write(chunk).await?;
    }
    upload.finish(expected, NOW).await
}

async fn content(blobs: &BlobStore, hash: BlobHash, start: u64, length: u64) -> io::Result<Vec<u8>> {
    let blob = blobs.read(hash, NOW).await.unwrap().expect("the blob exists");
    let chunks: Vec<_> = read_chunks(blob.file, start, length).try_collect().await?;
    Ok(chunks.concat())
}

/// Relative paths of all files below a folder, except the lock.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            found.extend(files(&path).into_iter().map(|inner| format!("{name}/{inner}")));
        } else if name != "lock" {
            found.push(name);
        }
    }
    found
}

#[tokio::test]
async fn stored_blob_is_read_back_whole_and_in_part() {
    let (folder, blobs) = blobs(10 << 20).await;
    let large: Vec<u8> = (0..3_000_001_u32).map(|n| (n % 251) as u8).collect();
    for content_in in [&b""[..], b"x", &large] {
        let stored = put(&blobs, content_in, None).await.unwrap();
        let (hash, size) = (BlobHash::from_content(content_in), content_in.len() as u64);
        assert_eq!(stored, StoredBlob { hash, size_bytes: size, created: true });
        assert_eq!(blobs.size(hash).await.unwrap(), Some(size));
        assert_eq!(content(&blobs, hash, 0, size).await.unwrap(), content_in);
    }
    let hash = BlobHash::from_content(&large);
    assert_eq!(content(&blobs, hash, 1_000_000, 600_000).await.unwrap(), large[1_000_000..1_600_000]);
    // A truncated file is never taken for complete.
    let name =
        files(&folder.path().join("blobs")).into_iter().find(|name| hash.to_string().ends_with(&name[3..]));
    File::options()
        .write(true)
        .open(folder.path().join("blobs").join(name.unwrap()))
        .unwrap()
        .set_len(9)
        .unwrap();
    let cut = content(&blobs, hash, 0, large.len() as u64).await.unwrap_err();
    assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn equal_content_is_stored_once() {
    let (folder, blobs) = blobs(1 << 20).await;
    let first = put(&blobs, b"horse", None).await.unwrap();
    let again = put(&blobs, b"horse", Some(first.hash)).await.unwrap();
    assert!(first.created && !again.created);
    let hex = first.hash.hex();
    assert_eq!(files(&folder.path().join("blobs")), [format!("{}/{}", &hex[..2], &hex[2..])]);
}

/// Faults: X6, V19.
#[tokio::test]
async fn refused_or_dropped_upload_leaves_nothing() {
    let (folder, blobs) = blobs(1000).await;
    let other = BlobHash::from_content(b"something else");
    let mismatch = put(&blobs, b"horse", Some(other)).await.unwrap_err();
    assert!(
        matches!(mismatch, BlobError::Mismatch { expected, actual } if expected == other && actual == BlobHash::from_content(b"horse"))
    );
    let too_large = put(&blobs, &[0; 1001], None).await.unwrap_err();
    assert!(matches!(too_large, BlobError::TooLarge { bytes_max: 1000 }), "{too_large}");
    put(&blobs, &[0; 1000], None).await.unwrap();
    let upload = blobs.begin_upload().await.unwrap().write(b"half of it").await.unwrap();
    assert_eq!(files(&folder.path().join("blobs/tmp")).len(), 1);
    drop(upload);
    assert_eq!(files(&folder.path().join("blobs")).len(), 1);
    assert_eq!(blobs.size(other).await.unwrap(), None);
    assert!(blobs.read(other, NOW).await.unwrap().is_none());
}

#[tokio::test]
async fn start_deletes_partial_uploads_of_a_killed_process() {
    let (folder, blobs) = blobs(1000).await;
    let kept = put(&blobs, b"horse", None).await.unwrap();
    drop(blobs);
    let root = folder.path().join("blobs");
    fs::write(root.join("tmp/0193e7a05b1c7d52"), "half a film").unwrap();
    let blobs = BlobStore::open(root.clone(), 1000).await.unwrap();
    assert_eq!(files(&root).len(), 1);
    assert_eq!(content(&blobs, kept.hash, 0, 5).await.unwrap(), b"horse");

    let second = BlobStore::open(root.clone(), 1000).await.unwrap_err();
    assert_eq!(
        second.to_string(),
        format!("{} is in use by process {}: stop that process first", root.display(), std::process::id())
    );
}

/// Faults: X6.
#[test]
fn invalid_hash_is_refused() {
    let digits = "0123456789abcdef".repeat(4);
    let good = format!("blake3:{digits}");
    assert_eq!(good.parse::<BlobHash>().unwrap().to_string(), good);
    for bad in [
        String::new(),
        digits.clone(),
        good.to_uppercase(),
        format!("blake3:{}", digits.to_uppercase()),
        format!("sha256:{digits}"),
        format!("{good}0"),
        good[..good.len() - 1].to_owned(),
        format!(" {good}"),
        format!("{good}\n"),
        format!("blake3:../../{}", &digits[6..]),
        format!("blake3:{}/", &digits[1..]),
        format!("blake3:{}\0", &digits[1..]),
        format!("blake3:{}", "é".repeat(32)),
        format!("blake3:+{}", &digits[1..]),
    ] {
        let error = bad.parse::<BlobHash>().unwrap_err().to_string();
        assert!(error.contains("is not the name of a blob"), "{error}");
        assert!(serde_json::from_value::<BlobHash>(bad.into()).is_err());
    }
}

#[test]
fn blob_hashes_in_json_are_found() {
    let (a, b) = (BlobHash::from_content(b"a"), BlobHash::from_content(b"b"));
    let check = |json: String, expected: &[BlobHash]| {
        assert_eq!(find_blob_hashes(&json), expected.iter().copied().collect(), "{json}");
    };
    check(format!(r#"{{"a":{{"__type":"core/ASSET","info":{{"hash":"{a}"}}}},"b":["{b}","{a}"]}}"#), &[a, b]);
    check(format!(r#"{{"{a}":"see {b}, or blake3:{}"}}"#, &b.hex()[1..]), &[a, b]);
    check(format!("\"{}\"", a.to_string().replace("blake3", "\\u0062lake3")), &[a]);
    check(format!(r#"{{"text":"ünïcode \u00fc blake3:","x":"blake3:{}ü"}}"#, &a.hex()[..63]), &[]);
}

#[tokio::test]
async fn only_unused_blobs_are_deleted() {
    let (folder, blobs) = blobs(1000).await;
    let mut hashes = Vec::new();
    for content in [&b"old"[..], b"touched", b"named", b"read", b"put again"] {
        hashes.push(put(&blobs, content, None).await.unwrap().hash);
    }
    let [old, touched, named, read, again] = hashes[..] else { unreachable!() };
    let root = folder.path().join("blobs");
    let unrelated = root.join(format!("{:02x}", old.shard())).join("notes.txt");
    fs::write(&unrelated, "unrelated").unwrap();

    let later = NOW.plus(9 * DAY);
    assert_eq!(blobs.touch(touched, later).await.unwrap(), Some(7));
    blobs.touch_all([named, BlobHash::from_content(b"never put")].into(), later).await.unwrap();
    blobs.read(read, later).await.unwrap().unwrap();
    let upload = blobs.begin_upload().await.unwrap().write(b"put again").await.unwrap();
    upload.finish(Some(again), later).await.unwrap();

    assert_eq!(blobs.delete_unused(NOW).await.unwrap(), DeletedBlobs::default());
    assert_eq!(blobs.delete_unused(NOW.plus(DAY)).await.unwrap(), DeletedBlobs { blobs: 1, bytes: 3 });
    assert_eq!(blobs.size(old).await.unwrap(), None);
    assert!(unrelated.exists());
    for used in [touched, named, read, again] {
        assert!(blobs.size(used).await.unwrap().is_some());
    }
    // Asking for the size does not count as use.
    assert_eq!(blobs.delete_unused(later.plus(DAY)).await.unwrap().blobs, 4);
    assert_eq!(files(&root).len(), 1);
}

#[tokio::test]
async fn touch_within_an_hour_writes_nothing() {
    let (_folder, blobs) = blobs(1000).await;
    let hash = put(&blobs, b"horse", None).await.unwrap().hash;
    let soon = NOW.plus(TOUCH_EVERY / 2);
    blobs.touch(hash, soon).await.unwrap();
    assert_eq!(blobs.delete_unused(NOW.plus(Duration::from_millis(1))).await.unwrap().blobs, 1);
}

fn tenant(name: &str) -> remuda_core::id::Tenant {
    name.parse().unwrap()
}

async fn put_for(blobs: &BlobStore, owner: &str, content: &[u8], room: u64) -> Result<StoredBlob, BlobError> {
    let upload = blobs.begin_upload().await?.owned_by(tenant(owner), room);
    upload.write(content).await?.finish(None, NOW).await
}

/// Faults: B8, J19.
#[tokio::test]
async fn blobs_count_for_the_tenant_that_brought_them_until_they_are_deleted() {
    let (folder, blobs) = blobs(1000).await;
    blobs.count_owned().await.unwrap();
    let bytes = |blobs: &BlobStore| (blobs.bytes_of(&tenant("anna")), blobs.bytes_of(&tenant("ben")));
    let first = put_for(&blobs, "anna", b"0123456789", 100).await.unwrap().hash;
    put_for(&blobs, "anna", b"0123456789", 100).await.unwrap();
    put_for(&blobs, "ben", b"0123456789", 100).await.unwrap();
    assert_eq!(bytes(&blobs), (10, 0), "the same content is stored once, for the first");
    let of_worker = put(&blobs, b"result", None).await.unwrap().hash;
    blobs.claim_all([of_worker, first].into(), tenant("ben")).await.unwrap();
    assert_eq!(bytes(&blobs), (10, 6), "only what had no owner");
    let refused = put_for(&blobs, "ben", b"too much", 7).await.unwrap_err();
    assert!(matches!(refused, BlobError::OverQuota { room_bytes: 7 }), "{refused}");
    drop(blobs);

    let blobs = BlobStore::open(folder.path().join("blobs"), 1000).await.unwrap();
    // What is stored before the count is part of it, and is not counted twice.
    put_for(&blobs, "ben", b"1234", 100).await.unwrap();
    assert_eq!(bytes(&blobs), (0, 0));
    blobs.count_owned().await.unwrap();
    blobs.count_owned().await.unwrap();
    assert_eq!(bytes(&blobs), (10, 10), "kept over a restart");

    blobs.touch(first, NOW.plus(5 * DAY)).await.unwrap();
    blobs.delete_unused(NOW.plus(DAY)).await.unwrap();
    assert_eq!(bytes(&blobs), (10, 0));
    blobs.delete_unused(NOW.plus(6 * DAY)).await.unwrap();
    assert_eq!((bytes(&blobs), files(&folder.path().join("blobs"))), ((0, 0), Vec::new()));
    put_for(&blobs, "ben", b"0123456789", 100).await.unwrap();
    assert_eq!(bytes(&blobs), (0, 10), "a deleted blob belongs to no tenant");
}
