//! Visits to a real sshd, from Debian's packages, on this machine.

mod checks;
mod sshd;
mod starts;
mod ways;

use remuda_core::provider::BootstrapError;

use self::sshd::Sshd;

/// What a visit that fails must say: the stage, whether to come again, and some words of the reason.
#[track_caller]
fn check(result: Result<(), BootstrapError>, stage: &str, is_retryable: bool, words: &[&str]) {
    let error = result.expect_err("the visit went well");
    assert_eq!((error.stage, error.is_retryable), (stage, is_retryable), "{}", error.message);
    for word in words {
        assert!(error.message.contains(word), "{word:?} is not in: {}", error.message);
    }
    assert!(error.message.len() < 3000, "{} bytes: {}", error.message.len(), error.message);
}

#[tokio::test]
async fn a_key_is_made_once_and_nobody_else_may_read_it() {
    use std::os::unix::fs::PermissionsExt;

    use super::{Key, KeyError};

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ssh/id_ed25519");
    let made = Key::open(&path).unwrap();
    assert!(made.public().starts_with("ssh-ed25519 "), "{}", made.public());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(Key::open(&path).unwrap().public(), made.public());
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "a draft was left behind");

    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    assert!(matches!(Key::open(&path), Err(KeyError::Exposed { mode: 0o644, .. })));
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::write(&path, "not a key").unwrap();
    assert!(matches!(Key::open(&path), Err(KeyError::Unusable { .. })));
}

#[tokio::test]
async fn openssh_reads_the_key_we_made() {
    let sshd = Sshd::start("");
    let said =
        std::process::Command::new("ssh-keygen").arg("-yf").arg(sshd.path("id_ed25519")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), sshd.key.public());
}
