use super::*;

fn note(what: &'static str, on: &str) -> Note {
    let at = Timestamp::from_millis(1_700_000_000_000);
    let (who, from) = ("anna".to_owned(), "127.0.0.1".to_owned());
    Note { at, who, from, what, on: on.to_owned(), outcome: "done".to_owned() }
}

async fn written(folder: &Path, notes: &[&'static str]) {
    let audit = Audit::open(folder, Timestamp::ZERO).unwrap();
    for what in notes {
        audit.note(note(what, "it")).await;
    }
}

fn found(folder: &Path) -> Found {
    read(&folder.join(FILE_NAME)).unwrap()
}

#[tokio::test]
async fn lines_follow_each_other_over_restarts() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), &["token.create", "worker.drain"]).await;
    written(folder.path(), &["token.revoke"]).await;
    let found = found(folder.path());
    let told: Vec<_> = found.lines.iter().map(|line| (line.seq, line.what.as_str())).collect();
    assert_eq!(told, [(1, "token.create"), (2, "worker.drain"), (3, "token.revoke")]);
    assert_eq!((found.broken.len(), found.torn), (0, 0));
}

/// Faults: X20.
#[tokio::test]
async fn any_change_of_a_line_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), &["a", "b", "c", "d", "e"]).await;
    let path = folder.path().join(FILE_NAME);
    let whole = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    let taken_out = [lines[0], lines[1], lines[3], lines[4]].join("\n");
    let swapped = [lines[0], lines[2], lines[1], lines[3], lines[4]].join("\n");
    let doubled = [lines[0], lines[1], lines[1], lines[2], lines[3], lines[4]].join("\n");
    let changed = whole.replacen("\"what\":\"b\"", "\"what\":\"x\"", 1);
    let garbled = whole.replacen("{\"seq\":2", "\"seq\":2", 1);
    let beheaded = lines[1..].join("\n");
    for tampered in [taken_out, swapped, doubled, changed, garbled, beheaded] {
        std::fs::write(&path, &tampered).unwrap();
        assert!(!found(folder.path()).broken.is_empty(), "{tampered}");
    }
    std::fs::write(&path, whole).unwrap();
    assert!(found(folder.path()).broken.is_empty());
}

/// Faults: X20, C1.
#[tokio::test]
async fn line_cut_by_a_crash_is_marked_and_the_chain_continues() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), &["a", "b"]).await;
    let path = folder.path().join(FILE_NAME);
    let whole = std::fs::read(&path).unwrap();
    let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for length in first + 1..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert_eq!(found(folder.path()).broken, Vec::<String>::new(), "cut at {length}");
        written(folder.path(), &["c"]).await;
        let found = found(folder.path());
        assert_eq!(found.broken, Vec::<String>::new(), "cut at {length}");
        assert_eq!(found.lines.last().unwrap().what, "c");
        assert!(found.lines.iter().any(|line| line.what == TORN));
    }
}

/// Faults: X12.
#[tokio::test]
async fn nothing_in_a_line_moves_a_cursor_or_makes_another_line() {
    let folder = tempfile::tempdir().unwrap();
    let audit = Audit::open(folder.path(), Timestamp::ZERO).unwrap();
    let odd = "a\n{\"seq\":9}\u{1b}[2J\u{7f}\u{85}\u{202e}\u{2028}";
    audit.note(note("worker.join", odd)).await;
    let text = std::fs::read_to_string(folder.path().join(FILE_NAME)).unwrap();
    assert_eq!(text.lines().count(), 1);
    assert!(text.trim_end().chars().all(|c| c == ' ' || c.is_ascii_graphic()), "{text:?}");
    assert_eq!(found(folder.path()).lines[0].on, odd);
}

/// Faults: X13.
#[tokio::test]
async fn refusals_fill_no_disk() {
    let folder = tempfile::tempdir().unwrap();
    let audit = Audit::open(folder.path(), Timestamp::ZERO).unwrap();
    for _ in 0..3 * REFUSALS_MAX {
        audit.refused(note("access.refused", "/remuda/v1/jobs")).await;
    }
    let mut later = note("access.refused", "/remuda/v1/jobs");
    later.at = later.at.plus(REFUSALS_WITHIN);
    audit.refused(later).await;
    let lines = found(folder.path()).lines;
    assert_eq!(lines.len(), REFUSALS_MAX as usize + 1);
    assert_eq!(lines.last().unwrap().outcome, "done (and 120 more before)");
}
