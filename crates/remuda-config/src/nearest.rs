//! Which name was meant: for keys and variables that nobody knows.

/// "did you mean …", or where to look.
pub(super) fn hint<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> String {
    match nearest(written, names) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "`remuda config show` lists all there are".to_owned(),
    }
}

/// The name that was most likely meant: the same in another section, or else the one with the fewest slips, up to one
/// in three letters.
pub fn nearest<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let tail = |name: &str| name.rsplit('.').next().map(str::to_owned);
    names
        .map(|name| {
            let is_elsewhere = tail(name) == tail(written);
            let slips = if is_elsewhere { 0 } else { distance(written, name) };
            (slips, name)
        })
        .min_by_key(|(slips, _)| *slips)
        // What all variables begin with says nothing about which was meant.
        .filter(|(slips, name)| *slips <= name.trim_start_matches("REMUDA_").len() / 3)
        .map(|(_, name)| name)
}

/// Letters to add, drop, change, or swap with their neighbour to make one of the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_counted_as_people_make_them() {
        for (a, b, slips) in
            [("lissten", "listen", 1), ("lsiten", "listen", 1), ("", "abc", 3), ("x", "x", 0)]
        {
            assert_eq!(distance(a, b), slips, "{a} {b}");
        }
    }

    #[test]
    fn the_nearest_name_is_offered_and_a_far_one_is_not() {
        let names = ["listen", "lease", "beat.idle", "scaling.machines_min", "REMUDA_URL", "REMUDA_LISTEN"];
        for (written, meant) in [
            ("lissten", Some("listen")),
            ("beat_idle", Some("beat.idle")),
            ("beats.idle", Some("beat.idle")),
            ("machines_min", Some("scaling.machines_min")),
            ("scaling.lease", Some("lease")),
            ("colour", None),
            ("REMUDA_LISTN", Some("REMUDA_LISTEN")),
            ("REMUDA_FOO", None),
        ] {
            assert_eq!(nearest(written, names.into_iter()), meant, "{written}");
        }
    }
}
