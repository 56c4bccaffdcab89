//! Suggests the most similar known name for an unknown setting or variable.

use strsim::osa_distance;

/// "did you mean …", or else where all names are listed.
pub(super) fn hint<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> String {
    match closest_name(written, names) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "`remuda config show` lists all settings".to_owned(),
    }
}

/// The most similar name: the same key in another section, or else the one with the fewest typing errors (a letter added,
/// dropped, changed or swapped with its neighbour), up to one in three letters.
pub fn closest_name<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let tail = |name: &str| name.rsplit('.').next().map(str::to_owned);
    names
        .map(|name| {
            let is_in_other_section = tail(name) == tail(written);
            let errors = if is_in_other_section { 0 } else { osa_distance(written, name) };
            (errors, name)
        })
        .min_by_key(|(errors, _)| *errors)
        // The common prefix of all variables does not count towards their length.
        .filter(|(errors, name)| *errors <= name.trim_start_matches("REMUDA_").len() / 3)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_similar_name_is_suggested() {
        let names = ["listen", "lease", "beat.idle", "scaling.machines_min", "REMUDA_URL", "REMUDA_LISTEN"];
        for (written, expected) in [
            ("lissten", Some("listen")),
            ("lsiten", Some("listen")),
            ("beat_idle", Some("beat.idle")),
            ("beats.idle", Some("beat.idle")),
            ("machines_min", Some("scaling.machines_min")),
            ("scaling.lease", Some("lease")),
            ("colour", None),
            ("REMUDA_LISTN", Some("REMUDA_LISTEN")),
            ("REMUDA_FOO", None),
        ] {
            assert_eq!(closest_name(written, names.into_iter()), expected, "{written}");
        }
    }
}
