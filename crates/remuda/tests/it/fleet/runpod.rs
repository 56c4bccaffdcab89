//! A fleet of pods under every provider fault, with a plane that is killed three times: what
//! was left over, made twice or too much stands in the provider's own books.

use remuda_fakes::runpod::Ledger;
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::account::{Account, moments};
use crate::harness::{Gate, Plane, wait_until};

/// What the catalogue says of the two GPUs in the two clouds.
const AGREED: [f64; 4] = [0.25, 0.17, 0.27, 0.16];
const MAX: usize = 4;
const BUDGET: f64 = 0.81;

/// Seconds where a provider takes minutes; it is sixty times faster, too.
const QUICK: &str = "reversal_cooldown = '1s'\nuptime_min = '1s'\nlist_every = '500ms'\nlist_lag_max = '2s'\norphan_grace = '2s'\n\
                     lost_create_timeout = '5s'\nimage_pull_timeout = '20s'\nspawning_timeout = '10s'\nreadiness_timeout = '10s'\noffer_cooldown = '2s'\n\
                     drain_timeout = '20s'\ncontact_timeout = '60s'\n";

struct Stage {
    plane: Plane,
    account: Account,
    gate: Gate,
    _folder: tempfile::TempDir,
}

impl Stage {
    /// Jobs wait until the gate is open.
    async fn set(faults: &[&str]) -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let gate = Gate::closed(folder.path(), "gate");
        let script = folder.path().join("work.sh");
        std::fs::write(&script, format!("{}; sleep 0.3; echo '{{}}'\n", gate.wait())).unwrap();
        let exec = format!("exec remuda worker --exec 'sh {}'", script.display());
        let flags = ["--speed", "60", "--requests-per-minute", "0", "--foreign", "2"];
        let account = Account::open(folder.path(), &exec, &[&flags[..], faults].concat()).await;
        let config = folder.path().join("remuda.toml");
        let plan = Plane::plan(crate::harness::QUICK)
            .arguments(&["--config", config.to_str().unwrap()])
            .variable("RUNPOD_API_KEY", "rpa_canary");
        // Faults of machines must not count against jobs.
        let general =
            "cycle_every = '1s'\ninfra_failures_max = 100\npoison_after = 100\nsuspect_shape_after = 100\n";
        let plan = plan.listening();
        let text = format!(
            "{general}[[fleet]]\nname = 'gpus'\nprovider = 'runpod'\nimage = 'ours:1'\nurl = 'http://{}'\n\
             gpus = ['NVIDIA RTX A4000', 'NVIDIA RTX A5000']\nclouds = ['secure', 'community']\nbase_url = '{}'\n\
             machines_min = 0\nmachines_max = {MAX}\njobs_per_worker = 2\nprice_max = 0.27\nbudget_hourly = {BUDGET}\n{QUICK}",
            plan.address(),
            account.url
        );
        std::fs::write(&config, text).unwrap();
        Stage { plane: plan.start().await, account, gate, _folder: folder }
    }

    /// Acts as the operator: pays, fixes the key, resets the brake.
    async fn act_as_operator(&self) {
        let fleet = self.plane.get("/remuda/v1/fleets/gpus").await;
        let why = fleet["creation_hold"].as_str().unwrap_or_default();
        let is_stuck = ["key refused", "no credit", "bad request"].iter().any(|it| why.contains(it));
        if is_stuck || !fleet["brake"].is_null() {
            let (status, answer) = self.plane.post("/remuda/v1/fleets/gpus/reset-brake", &json!({})).await;
            assert_eq!(status, StatusCode::OK, "{answer}");
        }
    }

    /// Waits for something while the operator looks after the account.
    async fn until<T>(&self, what: &str, mut look: impl AsyncFnMut(&Ledger) -> Option<T>) -> T {
        wait_until(what, async || {
            self.act_as_operator().await;
            look(&self.account.ledger().await).await
        })
        .await
    }

    async fn completed(&self) -> usize {
        let jobs = self.plane.jobs().await;
        jobs.iter().filter(|job| job["state"] == "completed").count()
    }
}

/// Faults: P1, P2, P3, P4, P5, P6, P7, P9, P11, P16, P18, M2, M3. Every fault there is, and the plane dies three times.
#[tokio::test]
async fn no_pod_leaks_or_duplicates_under_all_faults() {
    let mut stage = Stage::set(&["--fault", "all=0.02"]).await;
    let mut jobs = Vec::new();
    for n in 0..30 {
        jobs.push(stage.plane.submit(json!({ "n": n })).await);
    }
    stage.until("the first pods were ordered", async |ledger| (!ledger.names.is_empty()).then_some(())).await;
    stage.plane.kill();
    stage.plane.start_again().await;
    stage.gate.open();
    for least in [8, 20] {
        stage.until("some are done", async |_| (stage.completed().await >= least).then_some(())).await;
        stage.plane.kill();
        stage.plane.start_again().await;
    }
    for job in &jobs {
        let ended = stage
            .until("it is done", async |_| {
                Some(stage.plane.job(job).await)
                    .filter(|job| job["state"] != "queued" && job["state"] != "running")
            })
            .await;
        assert_eq!(ended["state"], "completed", "{ended}");
    }
    let mut left = usize::MAX;
    while left > 0 {
        left = stage
            .until("one less is left over", async |ledger| {
                let now = ledger.left_over().len();
                (now < left).then_some(now)
            })
            .await;
    }
    let ledger = stage.account.ledger().await;
    let struck = stage.account.struck().await;
    eprintln!("{} pods were made; {struck}", ledger.pods.len());
    for (name, named) in &ledger.names {
        assert_eq!(named.orders, 1, "{name} was ordered {} times; {struck}", named.orders);
    }
    assert!(ledger.names.keys().all(|name| name.starts_with("remuda-")), "{:?}", ledger.names);
    for (count, rate) in moments(&ledger, &AGREED) {
        assert!(count <= MAX, "{count} machines; {struck} {ledger:#?}");
        assert!(rate <= BUDGET + 1e-9, "${rate} an hour; {struck} {ledger:#?}");
    }
    let foreign: Vec<_> = ledger.pods.iter().filter(|pod| pod.is_foreign).collect();
    assert!(foreign.iter().all(|pod| pod.deleted.is_none()), "others' pods are left alone: {foreign:?}");
}

/// Faults: X10. A pod's environment has its token in it, and the key opens the account: neither is in any log, answer or
/// event.
#[tokio::test]
async fn api_key_and_join_tokens_are_never_shown() {
    let stage = Stage::set(&["--fault", "create-500=0.3", "--fault", "refuse-500=0.2"]).await;
    let job = stage.plane.submit(json!({ "n": 1 })).await;
    stage.gate.open();
    stage
        .until("it is done", async |_| (stage.plane.job(&job).await["state"] == "completed").then_some(()))
        .await;
    let mut all = stage.plane.process.said();
    for path in [
        "/remuda/v1/workers",
        "/remuda/v1/machines",
        "/remuda/v1/cycles",
        "/remuda/v1/tokens",
        "/remuda/v1/status",
    ] {
        all += &stage.plane.get(path).await.to_string();
    }
    for event in stage.plane.history().await {
        all += &event.data.to_string();
    }
    for secret in ["rpa_canary", "rmj_"] {
        assert!(!all.contains(secret), "{secret} is shown");
    }
    let tokens: Value = stage.plane.get("/remuda/v1/tokens").await;
    assert_eq!(tokens["tokens"], json!([]), "what join tokens are made with is no token");
}

/// Prints what a job finds of keys and tokens: in its own environment, and in that of every process above it that it may
/// look at, in this pod.
const SEARCH: &str = r#"
found=$(env | grep -cE 'rpa_|rmj_|rmd_|RUNPOD_API_KEY')
up=$PPID
while [ "$up" -gt 1 ] && grep -qaE 'remuda.worker' "/proc/$up/cmdline"; do
  found="$found, $(tr '\0' '\n' <"/proc/$up/environ" | grep -cE 'rpa_|rmj_|rmd_|RUNPOD_API_KEY')"
  found="$found, $(tr '\0' '\n' <"/proc/$up/cmdline" | grep -cE 'rpa_|rmj_|rmd_')"
  up=$(awk '/^PPid/ { print $2 }' "/proc/$up/status")
done
echo "[$found]"
"#;

/// Faults: X11. The account's key stays with the plane: no pod is ordered with it, and a job in a pod finds neither that
/// key, nor the one that the provider gives the pod, nor the token with which its worker joined.
#[tokio::test]
async fn job_in_a_rented_pod_finds_no_key_and_no_token() {
    let stage = Stage::set(&[]).await;
    std::fs::write(stage._folder.path().join("work.sh"), SEARCH).unwrap();
    let job = stage.plane.submit(json!({ "n": 1 })).await;
    let pods = stage
        .until("a pod was ordered", async |_| {
            let pods = stage.account.pods("rpa_canary").await;
            pods.as_array()?
                .iter()
                .find(|pod| pod["name"].as_str().is_some_and(|name| name.starts_with("remuda-")))?;
            Some(pods)
        })
        .await;
    for pod in
        pods.as_array().unwrap().iter().filter(|pod| pod["name"].as_str().unwrap().starts_with("remuda-"))
    {
        let ordered = pod["env"].as_object().unwrap();
        assert!(!pod.to_string().contains("rpa_canary"), "the pod got the key of the account: {pod}");
        let tokens = ordered.values().filter(|value| value.as_str().unwrap().starts_with("rmj_")).count();
        assert_eq!(tokens, 1, "a pod gets one token, its own: {pod}");
    }
    let ended = stage
        .until("it is done", async |_| {
            Some(stage.plane.job(&job).await)
                .filter(|job| job["state"] == "completed" || job["state"] == "failed")
        })
        .await;
    let found = ended["result"].as_array().unwrap_or_else(|| panic!("{ended}"));
    assert!(found.len() >= 3, "it looked at its worker: {ended}");
    assert!(found.iter().all(|count| *count == json!(0)), "{ended}");
}
