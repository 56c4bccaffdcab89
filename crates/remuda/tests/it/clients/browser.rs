//! The stock web UI in a real browser.

use std::fs;
use std::path::Path;

use super::fleet::{Fleet, ended_well, script};
use super::tools::{Tools, chromium, screenshots};
use crate::harness::{Plane, QUICK};

/// Faults: V8.
#[tokio::test]
async fn stock_ui_shows_image_although_server_dies() {
    let Some(tools) = Tools::find() else { return };
    let Some(chromium) = chromium() else { return };
    let ui = tools.package("comfyui_frontend_package");
    let plan = Plane::plan(QUICK).arguments(&["--ui", ui.to_str().unwrap()]);
    let mut fleet = Fleet::on(plan.start().await).await;
    let mut script =
        script(&tools, &fleet, "browser.mjs", &[Path::new(&fleet.url), Path::new("."), &chromium]);
    // Each within the usual patience: a browser takes long to start on a busy machine.
    for step in ["loaded", "queued"] {
        assert!(script.line(step).await.is_some(), "{step:?} should have come: {}", script.said());
    }
    let job = fleet.first_job(&mut script).await;
    fleet.kill_the_server_of(&job).await;
    for step in ["progress", "shown", "done"] {
        assert!(script.line(step).await.is_some(), "{step:?} should have come: {}", script.said());
    }
    ended_well(script).await;
    for picture in ["running.png", "done.png"] {
        fs::copy(fleet.folder().join("client").join(picture), screenshots().join(picture)).unwrap();
    }
    fleet.was_done_elsewhere(&job).await;
}
