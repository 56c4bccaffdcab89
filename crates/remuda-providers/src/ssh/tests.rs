//! Bootstraps against a real sshd from Debian's packages, on this machine.

mod checks;
mod connections;
mod sshd;
mod starts;

use remuda_core::provider::BootstrapError;

use self::sshd::Sshd;

/// What a failed bootstrap must report: the stage, whether a retry can help, and part of the reason.
#[track_caller]
fn check(result: Result<(), BootstrapError>, stage: &str, is_retryable: bool, words: &[&str]) {
    let error = result.expect_err("the bootstrap went well");
    assert_eq!((error.stage, error.is_retryable), (stage, is_retryable), "{}", error.message);
    for word in words {
        assert!(error.message.contains(word), "{word:?} is not in: {}", error.message);
    }
    assert!(error.message.len() < 3000, "{} bytes: {}", error.message.len(), error.message);
}

#[tokio::test]
async fn key_is_created_once_and_private() {
    use std::os::unix::fs::PermissionsExt;

    use super::{SshKey, SshKeyError};

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ssh/id_ed25519");
    let made = SshKey::open(&path).unwrap();
    assert!(made.public().starts_with("ssh-ed25519 "), "{}", made.public());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(SshKey::open(&path).unwrap().public(), made.public());
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "a draft was left behind");

    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    assert!(matches!(SshKey::open(&path), Err(SshKeyError::Exposed { mode: 0o644, .. })));
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::write(&path, "not a key").unwrap();
    assert!(matches!(SshKey::open(&path), Err(SshKeyError::Unusable { .. })));
}

#[tokio::test]
async fn openssh_reads_our_key() {
    let sshd = Sshd::start("");
    let said =
        std::process::Command::new("ssh-keygen").arg("-yf").arg(sshd.path("id_ed25519")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), sshd.key.public());
}
