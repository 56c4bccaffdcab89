//! An account at a provider that stands in for RunPod, with its books.

use std::collections::BTreeMap;
use std::path::Path;

use remuda_fakes::runpod::Ledger;
use serde_json::Value;

use crate::harness::{Process, remuda};

#[derive(Debug)]
pub(super) struct Account {
    _process: Process,
    http: reqwest::Client,
    pub(super) url: String,
    control: String,
}

impl Account {
    /// `exec` is what runs in each pod.
    pub(super) async fn open(folder: &Path, exec: &str, flags: &[&str]) -> Account {
        Account::bare(folder, &[&["--exec", exec], flags].concat()).await
    }

    /// Nothing of ours runs in its pods.
    pub(super) async fn bare(folder: &Path, flags: &[&str]) -> Account {
        let mut command = remuda(folder);
        let path = [Path::new(env!("CARGO_BIN_EXE_remuda")).parent().unwrap().to_owned()];
        let rest = std::env::var_os("PATH").unwrap();
        let path = path.into_iter().chain(std::env::split_paths(&rest));
        command.env("PATH", std::env::join_paths(path).unwrap());
        command.args(["fake", "runpod", "--listen", "127.0.0.1:0", "--json"]).args(flags);
        let mut process = Process::start("the account", &mut command);
        let ready: Value = serde_json::from_str(&process.line("url").await.unwrap()).unwrap();
        let text = |key: &str| ready[key].as_str().unwrap().to_owned();
        let http = remuda_net::http_client::client_builder().build().unwrap();
        Account { url: text("url"), control: text("control"), _process: process, http }
    }

    pub(super) async fn ledger(&self) -> Ledger {
        self.http.get(format!("{}/ledger", self.control)).send().await.unwrap().json().await.unwrap()
    }

    /// Every pod of the account, as the owner of its key sees them.
    pub(super) async fn pods(&self, key: &str) -> Value {
        let listed = self.http.get(format!("{}/pods", self.url)).bearer_auth(key).send().await.unwrap();
        listed.json::<Value>().await.unwrap()["pods"].clone()
    }

    /// What struck, by its name.
    pub(super) async fn struck(&self) -> Value {
        let answer = self.http.get(format!("{}/faults", self.control)).send().await.unwrap();
        answer.json::<Value>().await.unwrap()
    }
}

/// What was there at each moment something changed, by what was ordered: how many machines, and what they cost an hour.
/// A pod that the provider made besides the one that was asked for counts as its own doing, and one that it bills at
/// another price than agreed counts at the highest that was.
pub(super) fn moments(ledger: &Ledger, agreed: &[f64]) -> Vec<(usize, f64)> {
    let most = agreed.iter().copied().fold(0.0, f64::max);
    let mut changes: Vec<(String, i64, f64)> = Vec::new();
    let mut seen = BTreeMap::<&str, ()>::new();
    for pod in ledger.pods.iter().filter(|pod| !pod.is_foreign) {
        if seen.insert(&pod.name, ()).is_some() {
            continue;
        }
        let rate = if agreed.contains(&pod.rate) { pod.rate } else { most };
        changes.push((pod.created.clone(), 1, rate));
        changes.extend(pod.deleted.clone().map(|at| (at, -1, -rate)));
    }
    // Of changes at one moment, ends come first: their order is unknown, and ends make room.
    changes.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    let (mut count, mut rate) = (0, 0.0);
    let moment = |(_, by, cost): &(String, i64, f64)| {
        (count, rate) = (count + by, rate + cost);
        (usize::try_from(count).unwrap(), rate)
    };
    changes.iter().map(moment).collect()
}
