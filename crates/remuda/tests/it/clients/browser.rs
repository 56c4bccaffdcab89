//! The stock web UI, in a real browser that someone seems to sit at.

use std::path::Path;

use super::fleet::{Fleet, ended_well, script};
use super::tools::{Tools, chromium};
use crate::harness::{Plane, QUICK, has_all};

/// Faults: V8.
#[tokio::test]
async fn the_web_ui_shows_its_picture_though_the_server_dies() {
    let tools = Tools::ready();
    let ui = tools.package("comfyui_frontend_package").join("static");
    let mut fleet = Fleet::on(Plane::plan(QUICK).serving_ui(&ui).start().await).await;
    let arguments = [Path::new(&fleet.url), Path::new("."), &chromium()];
    let mut script = script(&tools, &fleet, "browser.mjs", &arguments);
    let job = fleet.first_job(&mut script).await;
    fleet.kill_the_server_of(&job).await;
    has_all(&ended_well(script).await, &["loaded", "queued", "progress", "shown", "done"]);
    fleet.was_done_elsewhere(&job).await;
}
