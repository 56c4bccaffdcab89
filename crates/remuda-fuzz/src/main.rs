//! `cargo run -p remuda-fuzz -- FOLDER` writes the seeds of every fuzz target to `FOLDER/TARGET/`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use remuda_fuzz::TARGETS;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: remuda-fuzz FOLDER, the folder for the seeds of every target");
        return ExitCode::from(2);
    };
    match write_seeds(&folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the seeds could not be written to {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

fn write_seeds(folder: &std::path::Path) -> std::io::Result<()> {
    for target in TARGETS {
        let folder = folder.join(target.name);
        fs::create_dir_all(&folder)?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            fs::write(folder.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
