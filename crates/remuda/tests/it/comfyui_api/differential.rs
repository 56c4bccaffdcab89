//! The same requests go to a ComfyUI server and to a plane in front of that server. Answers, messages, files, history and job
//! lists must be the same, field by field, except for the differences in `explained`, which `docs/comfyui.md` lists too. The
//! server is a real one where `REMUDA_COMFYUI_URL` names one, otherwise the stand-in.
//!
//! ```text
//!             ┌────────────▶ server ──▶ observation ──┐
//!   case ─────┤                ▲                      ├──▶ explained::normalize ──▶ equal?
//!             └──▶ plane ──▶ worker ────▶ observation ┘
//! ```
//!
//! Before each run another prompt clears the server's cache, which holds the results of one prompt.

pub(super) mod cases;
mod explained;
mod masks;
mod observe;

use remuda_fakes::comfyui::Version;
use serde_json::Value;

use self::cases::{Case, cases};
use self::observe::{Side, observe};
use super::*;
use crate::comfyui::fixture::until_idle;

/// A server, and a plane in front of it.
struct Sides {
    stage: ComfyFixture,
    bare: Side,
    plane: Side,
    version: String,
    /// Part of every name, because a real server keeps its files.
    tag: String,
}

impl Sides {
    async fn start(server: Server) -> Sides {
        let stage = ComfyFixture::on(server).await;
        wait_until("the classes are known", async || {
            stage.get("/object_info").await["SaveImage"].is_object().then_some(())
        })
        .await;
        let bare = Client::new(stage.server.url());
        let version =
            bare.get("/system_stats").await["system"]["comfyui_version"].as_str().unwrap().to_owned();
        let (plane, has_jobs) = (Client::clone(&stage.plane), version != "0.3.75");
        let (bare, plane) = (Side { client: bare, has_jobs }, Side { client: plane, has_jobs });
        // The plane's port is taken once at a time, and a server may outlive many planes.
        let time = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() % 100_000_000;
        let tag = format!("d{}t{time}", stage.plane.address.port());
        Sides { stage, bare, plane, version, tag }
    }

    /// What both sides show of one case, without what is explained.
    async fn compare(&self, number: usize, case: &Case) -> Vec<String> {
        let unique = format!("{}n{number}", self.tag);
        let mut seen = Vec::new();
        for side in [&self.bare, &self.plane] {
            until_idle(&self.stage.server).await;
            self.bare.clear_cache(&format!("{unique}{}", seen.len())).await;
            seen.push(observe(side, case, &unique).await);
        }
        let [mut expected, mut shown] = <[Value; 2]>::try_from(seen).unwrap();
        explained::normalize(&mut expected, &mut shown, &self.version);
        differences(&expected, &shown)
    }
}

/// The paths at which two values differ.
fn differences(expected: &Value, shown: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect_differences("", expected, shown, &mut found);
    found
}

fn collect_differences(path: &str, expected: &Value, shown: &Value, found: &mut Vec<String>) {
    match (expected, shown) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: std::collections::BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for key in keys {
                let side =
                    |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or("(absent)".into());
                collect_differences(&format!("{path}/{key}"), &side(left), &side(right), found);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (at, (left, right)) in left.iter().zip(right).enumerate() {
                collect_differences(&format!("{path}/{at}"), left, right, found);
            }
        }
        (Value::Array(left), Value::Array(right)) => {
            let at = left.iter().zip(right).take_while(|(left, right)| left == right).count();
            let side = |items: &[Value]| items.get(at).map_or("(the end)".to_owned(), Value::to_string);
            let (left, right) = (side(left), side(right));
            found.push(format!("{path}/{at}: {right}\n      instead of {left}"));
        }
        _ if expected == shown => {}
        _ => found.push(format!("{path}: {shown}\n      instead of {expected}")),
    }
}

async fn compare_all(server: Server) {
    let sides = Sides::start(server).await;
    let only = std::env::var("IT_CASE").unwrap_or_default();
    let mut different = Vec::new();
    let is_new = sides.version == "0.30.0";
    let cases = cases().into_iter().enumerate();
    for (number, case) in cases.filter(|(_, case)| (is_new || !case.is_new) && case.name.contains(&only)) {
        let found = sides.compare(number, &case).await;
        if !found.is_empty() {
            different.push(format!("{}:\n    {}", case.name, found.join("\n    ")));
        }
    }
    assert!(different.is_empty(), "on ComfyUI {}:\n{}", sides.version, different.join("\n"));
}

#[tokio::test]
async fn plane_shows_what_the_server_behind_it_shows() {
    compare_all(Server::any().await).await;
}

#[tokio::test]
async fn plane_shows_what_an_older_server_behind_it_shows() {
    compare_all(Server::fake(Options { version: Version::V0_3_75, ..Options::default() }).await).await;
}

#[tokio::test]
async fn masks_are_composed_as_by_the_server_itself() {
    let sides = Sides::start(Server::any().await).await;
    let (mut expected, mut shown) =
        (sides.observe_masks(&sides.bare).await, sides.observe_masks(&sides.plane).await);
    explained::packed_masks(&mut expected);
    explained::packed_masks(&mut shown);
    let found = differences(&expected, &shown);
    assert!(found.is_empty(), "on ComfyUI {}:\n    {}", sides.version, found.join("\n    "));
}

#[test]
fn explained_differences_are_documented() {
    let document = include_str!("../../../../../docs/comfyui.md");
    let (_, list) = document.split_once("## What a client may still notice").unwrap();
    let (list, _) = list.split_once("\n## ").unwrap();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for why in explained::REASONS {
        assert!(words(list).contains(&words(why)), "docs/comfyui.md does not say: {why}");
    }
}
