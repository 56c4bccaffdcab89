//! `remuda drill` as users run it: a real plane and real workers under all faults that this machine allows.

use serde_json::Value;

use crate::harness::remuda;

/// Long enough for some fifty faults, short enough for every run of the tests; `remuda drill --hours 2` is for the night.
const DURATION: &str = "2m";
/// Twice the drill's own: other tests use the same two cores meanwhile.
const LEASE: &str = "12s";
/// The same faults every time, so that a failure tells of a change; `remuda drill` draws others.
const SEED: &str = "7";

/// Faults: A1, A3, C1, D2, D3, D8, J3, J4, J18, K1, N1, N2, N5, V8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drill_loses_doubles_and_misjudges_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut drill = remuda(folder.path());
    drill.args(["drill", "--json", "--duration", DURATION, "--lease", LEASE, "--seed", SEED, "--data"]);
    drill.arg(folder.path());
    let output = tokio::process::Command::from(drill).kill_on_drop(true).output().await.unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no report: {told}"));
    assert!(output.status.success(), "{report:#}\n{told}");
    for broken in ["lost", "refused", "doubled", "false_verdicts"] {
        assert_eq!(report[broken], serde_json::json!([]), "{broken}: {report:#}");
    }
    assert!(report["faults_total"].as_u64().unwrap() >= 20, "{report:#}");
    assert!(report["jobs"]["completed"].as_u64().unwrap() >= 100, "{report:#}");
    assert!(report["jobs"]["failed_as_expected"].as_u64().unwrap() >= 1, "{report:#}");
}
