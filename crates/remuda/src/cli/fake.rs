//! `remuda fake`: stand-ins for services, to rehearse with before it is serious.

mod comfyui;
mod runpod;

use std::process::ExitCode;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(super) struct FakeCommand {
    #[command(subcommand)]
    action: FakeAction,
}

#[derive(Debug, Subcommand)]
enum FakeAction {
    /// Stand in for ComfyUI servers: same answers, same messages, faults on demand
    ///
    /// Example: remuda fake comfyui --servers 3 --speed 10 --fault drop-completion=0.05 --fault die=0.01
    #[command(after_long_help = comfyui::help())]
    Comfyui(comfyui::Comfyui),
    /// Stand in for RunPod: an account whose pods are processes on this machine, faults on demand
    ///
    /// Example: remuda fake runpod --speed 60 --exec 'remuda worker --exec ./render.sh' --fault create-500=0.1
    #[command(after_long_help = runpod::help())]
    Runpod(runpod::Runpod),
    /// Run what is in a pod of `remuda fake runpod`, and end it when that one is gone
    #[command(hide = true)]
    KeepPod(runpod::KeepPod),
}

impl FakeCommand {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            FakeAction::Comfyui(comfyui) => comfyui.run().await,
            FakeAction::Runpod(runpod) => runpod.run().await,
            FakeAction::KeepPod(keep) => keep.run(),
        }
    }
}

fn speed(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|speed: &f64| *speed > 0.0)
        .ok_or_else(|| "a number above zero, or inf".to_owned())
}

#[cfg(test)]
mod tests {
    use super::speed;

    #[test]
    fn a_speed_is_above_zero() {
        assert_eq!(speed("inf"), Ok(f64::INFINITY));
        assert!(speed("0").is_err());
    }
}
