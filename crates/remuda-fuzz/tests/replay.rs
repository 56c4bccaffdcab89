//! Replays what the fuzz targets start from and what they have found, in every run of the tests.

use std::fs;
use std::path::Path;

use remuda_fuzz::{FuzzTarget, INPUT_BYTES_MAX, TARGETS};

/// Seeds are also tried cut off after each of their first bytes: a parser that reads one byte too many is found here.
#[test]
fn seeds_and_their_beginnings_break_no_target() {
    for target in TARGETS {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{} starts from nothing", target.name);
        for seed in seeds {
            assert!(seed.len() <= INPUT_BYTES_MAX, "a seed of {} has {} bytes", target.name, seed.len());
            (target.run)(&seed);
            for end in (0..seed.len()).step_by(1 + seed.len() / 64) {
                (target.run)(&seed[..end]);
            }
        }
    }
}

/// A seed that a parser refuses at its first byte leads the fuzzer nowhere.
#[test]
fn first_seed_of_each_target_is_valid() {
    for target in TARGETS {
        let seed = (target.seeds)().swap_remove(0);
        assert!((target.run)(&seed), "the first seed of {} is refused", target.name);
    }
}

/// `fuzz/findings/TARGET/` holds every input that once broke a target.
#[test]
fn findings_stay_fixed() {
    let findings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/findings");
    for entry in fs::read_dir(&findings).expect("fuzz/findings is in the repository").flatten() {
        if !entry.path().is_dir() {
            continue;
        }
        let name = entry.file_name();
        let target: &FuzzTarget = TARGETS
            .iter()
            .find(|target| target.name == name)
            .unwrap_or_else(|| panic!("fuzz/findings has {name:?}, which is no target"));
        for file in fs::read_dir(entry.path()).expect("a folder of findings can be read").flatten() {
            (target.run)(&fs::read(file.path()).expect("a finding can be read"));
        }
    }
}
