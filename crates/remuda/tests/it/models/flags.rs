//! What `--model` and `[[model]]` may say, and what is said before anything starts.

use std::fs;
use std::path::Path;
use std::process::Output;

use super::host::stand_ins;
use crate::harness::{assert_contains_all, remuda};

fn run(folder: &Path, arguments: &[&str]) -> Output {
    remuda(folder).args(arguments).output().unwrap()
}

#[test]
fn unservable_model_is_reported_before_start() {
    let folder = tempfile::tempdir().unwrap();
    stand_ins(folder.path());
    fs::write(folder.path().join("notes.txt"), "no model").unwrap();
    fs::write(folder.path().join("odd.fake"), "juggling").unwrap();
    for (models, told) in [
        (&["embed=nowhere"][..], &["embed", "nowhere", "no file or folder found here"][..]),
        (&["embed=notes.txt"], &["notes.txt", "not supported", "this build has"]),
        (&["embed=odd.fake"], &["odd.fake", "juggling"]),
        (&["embed"], &["NAME=PATH"]),
        (&["embed=embed.fake,copys=2"], &["did you mean `copies`?"]),
        (&["embed=embed.fake", "embed=chat.fake"], &["embed", "same name as another"]),
    ] {
        for start in [&["up", "--data", "data", "--listen", "127.0.0.1:0"][..], &["worker", "--data", "data"]]
        {
            let flags = models.iter().flat_map(|model| ["--model", model]);
            let ended = run(folder.path(), &start.iter().copied().chain(flags).collect::<Vec<_>>());
            let said = String::from_utf8_lossy(&ended.stderr);
            assert_contains_all(&said, told);
            assert_eq!(ended.status.code(), Some(2), "{said}");
            assert!(!folder.path().join("data").exists(), "nothing was to be started");
        }
    }
}

#[test]
fn configured_models_are_shown_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("remuda.toml");
    let write = |text: &str| fs::write(&file, text).unwrap();
    let config = |what: &str| {
        let ended = run(folder.path(), &["config", what]);
        (ended.status.success(), String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned())
    };
    write("[models]\nmemory = \"2GiB\"\n\n[[model]]\nname = \"embed\"\npath = \"embed.fake\"\ncopies = 2\n");
    let (is_fine, said) = config("show");
    assert!(is_fine, "{said}");
    assert_contains_all(
        &said,
        &["models.memory", "2GiB", "model.embed.copies", "model.embed.isolation", "remuda.toml:7"],
    );
    let (is_fine, said) = config("check");
    assert!(!is_fine && said.contains("embed.fake"), "the file is missing: {said}");
    stand_ins(folder.path());
    let (is_fine, said) = config("check");
    assert!(is_fine && said.contains("models embed"), "{said}");
    for (text, told) in [
        ("[[model]]\nname = \"embed\"\npath = \"x\"\ncopys = 2\n", "did you mean `copies`?"),
        ("[[model]]\nname = \"embed\"\n", "has no `path`"),
        ("[model]\nname = \"embed\"\n", "write `[[model]]`"),
        (
            "[[model]]\nname = \"a\"\npath = \"x\"\n[[model]]\nname = \"a\"\npath = \"y\"\n",
            "same name as another",
        ),
    ] {
        write(text);
        let (is_fine, said) = config("show");
        assert!(!is_fine && said.contains(told), "{text}: {said}");
    }
}

/// A model that was fetched is named without its folder.
#[test]
fn bare_name_finds_the_fetched_model() {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("data/models");
    fs::create_dir_all(&models).unwrap();
    stand_ins(&models);
    let check = |arguments: &[&str]| {
        let ended = run(folder.path(), &[&["models", "check", "--data", "data"], arguments].concat());
        String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned()
    };
    // `check` knows no stand-ins, and says which file it looked at.
    assert_contains_all(&check(&["embed.fake"]), &["data/models/embed.fake: not supported"]);
    // A file of this name in the current folder comes first.
    stand_ins(folder.path());
    let said = check(&["embed.fake"]);
    assert!(said.contains("embed.fake: not supported") && !said.contains("data/models"), "{said}");
    let worker = ["worker", "--data", "data", "--model"];
    for (model, words) in [
        ("embed=all-minilm-l6-v2", &["remuda models get all-minilm-l6-v2"][..]),
        ("embed=all-minilm-l6v2", &["all-minilm-l6v2", "no file or folder found here"]),
        ("embed=models/all-minilm-l6-v2", &["models/all-minilm-l6-v2", "no file or folder found here"]),
    ] {
        let ended = run(folder.path(), &[&worker[..], &[model]].concat());
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{said}");
        assert_contains_all(&said, words);
    }
}

#[test]
fn next_line_of_the_documents_serves_what_the_line_before_fetched() {
    for document in ["README.md", "docs/models.md"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(document);
        let text = fs::read_to_string(path).unwrap();
        let mut lines = text.lines().skip_while(|line| !line.starts_with("remuda models get "));
        let name = lines.next().unwrap().split_whitespace().nth(3).unwrap();
        let next = lines.next().unwrap();
        assert!(next.contains(&format!("--model embed={name},")), "{document}: {next}");
    }
}
