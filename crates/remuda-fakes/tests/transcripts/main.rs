//! Recorded runs of real ComfyUI servers, replayed against the fake. The client's actions are repeated, and the
//! server's answers are compared: same messages, same order, same status codes, same JSON.
//!
//! Ids, times, counters, file names and sizes are normalised first (`shape`). Graphs that a recording left out are made
//! up so that they run the same way (`graphs`). `differences` has the known differences, and `src/README.md` lists
//! exactly those.
#![expect(clippy::unwrap_used, reason = "what a test does not expect may end it")]

mod differences;
mod graphs;
mod recording;
mod replay;
mod shape;
mod uploads;

use remuda_fakes::comfyui::Version;

use crate::replay::{Timing, replay};

macro_rules! transcripts {
    ($($name:ident: $file:literal, $version:ident, $timing:ident;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                replay($file, Version::$version, Timing::$timing).await;
            }
        )*

        /// Every recording is replayed.
        #[test]
        fn no_recording_is_forgotten() {
            let mut replayed = vec![$($file),*];
            replayed.sort_unstable();
            assert_eq!(recording::names(), replayed);
        }
    };
}

transcripts! {
    normal_run: "ws-normal-run", V0_7_0, Demand;
    cached_run: "ws-cached-run", V0_7_0, Demand;
    progress_run: "ws-progress-run", V0_7_0, Demand;
    connect_after_submit: "ws-connect-after-submit", V0_7_0, Clock;
    disconnect_reconnect: "ws-disconnect-reconnect", V0_7_0, Clock;
    two_sockets_same_clientid: "ws-two-sockets-same-clientid", V0_7_0, Demand;
    no_clientid: "ws-no-clientid", V0_7_0, Demand;
    error_run: "ws-error-run", V0_7_0, Demand;
    execution_blocker: "ws-execution-blocker", V0_7_0, Demand;
    interrupted_run: "ws-interrupted-run", V0_7_0, Demand;
    binary_frames: "ws-binary-frames", V0_7_0, Demand;
    slow_reader_blocks_everyone: "ws-slow-reader-blocks-everyone", V0_7_0, Demand;
    prompt_responses: "http-prompt-responses", V0_7_0, Demand;
    upload_and_view: "http-upload-and-view", V0_7_0, Demand;
    info_endpoints: "http-info-endpoints", V0_7_0, Demand;
    origin_host_users: "http-origin-host-users", V0_7_0, Demand;
    queue_operations: "queue-operations", V0_7_0, Demand;
    duplicate_prompt_ids: "duplicate-prompt-ids", V0_7_0, Demand;
    prompt_options: "prompt-options", V0_7_0, Demand;
    poison_bad_extra_data: "poison-bad-extra-data", V0_7_0, Demand;
    poison_client_id_not_a_string: "poison-client-id-not-a-string", V0_7_0, Demand;
    poison_filename_prefix: "poison-filename-prefix", V0_7_0, Demand;
    poison_nan_in_ui_output: "poison-nan-in-ui-output", V0_7_0, Demand;
    poison_node_calls_sys_exit: "poison-node-calls-sys-exit", V0_7_0, Demand;
    poison_same_id_and_number: "poison-same-id-and-number", V0_7_0, Demand;
    poison_unused_node_without_inputs: "poison-unused-node-without-inputs", V0_7_0, Demand;
    kill9_restart: "server-kill9-restart", V0_7_0, Demand;
    crash_in_node: "server-crash-in-node", V0_7_0, Demand;
    v0_30_0_differences: "v0.30.0-differences", V0_30_0, Demand;
}

#[test]
fn the_readme_lists_every_difference() {
    differences::check_readme();
}
