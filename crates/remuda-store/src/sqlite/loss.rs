//! Whether a store holds everything that was acknowledged: compares the database with its proof.

use super::proof::StoredProof;
use crate::loss::{CommitMark, StoreLoss};

impl StoreLoss {
    /// `stored` is missing for a database without numbered commits; `was_left_open` if it was not closed cleanly.
    pub(super) fn find(
        stored: Option<CommitMark>,
        proof: StoredProof,
        was_left_open: bool,
    ) -> Option<StoreLoss> {
        match (stored, proof) {
            (None, StoredProof::Missing) => None,
            (stored, StoredProof::Damaged) => Some(StoreLoss::ProofDamaged { stored }),
            (None, StoredProof::Mark(proved)) => Some(StoreLoss::Emptied { proved }),
            // A copy made with `.backup` has no proof, and no lock that says that it is open.
            (Some(stored), StoredProof::Missing) => {
                (was_left_open && stored.commit > 0).then_some(StoreLoss::ProofRemoved { stored })
            }
            (Some(stored), StoredProof::Mark(proved)) if stored.store != proved.store => {
                Some(StoreLoss::ForeignProof { stored, proved })
            }
            (Some(stored), StoredProof::Mark(proved)) => {
                let is_behind = stored.commit < proved.commit
                    || stored.sequence < proved.sequence
                    || stored.term < proved.term;
                is_behind.then_some(StoreLoss::Behind { stored, proved })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use remuda_core::id::{Sequence, Term};
    use remuda_core::time::Timestamp;

    use super::*;

    fn mark(commit: u64) -> CommitMark {
        let latest = Timestamp::from_millis(1_700_000_000_000 + commit);
        CommitMark { store: 1, commit, sequence: Sequence(2 * commit), term: Term(3), latest }
    }

    #[test]
    fn store_ahead_of_its_proof_is_whole() {
        for commit in [7, 8] {
            assert_eq!(StoreLoss::find(Some(mark(commit)), StoredProof::Mark(mark(7)), true), None);
        }
        assert_eq!(StoreLoss::find(None, StoredProof::Missing, false), None, "a new store");
        assert_eq!(StoreLoss::find(Some(mark(7)), StoredProof::Missing, false), None, "a copy");
        assert_eq!(StoreLoss::find(Some(mark(0)), StoredProof::Missing, true), None, "killed at creation");
    }

    #[test]
    fn store_behind_its_proof_names_what_is_missing() {
        let loss = StoreLoss::find(Some(mark(5)), StoredProof::Mark(mark(9)), true).unwrap();
        let said = loss.to_string();
        assert!(
            said.starts_with("commits 6 to 9 are missing, with events 11 to 18: it ends at 2023"),
            "{said}"
        );
        let older_term = CommitMark { term: Term(2), ..mark(9) };
        assert!(StoreLoss::find(Some(older_term), StoredProof::Mark(mark(9)), true).is_some());
    }

    #[test]
    fn proof_that_tells_nothing_is_a_loss() {
        let other = CommitMark { store: 2, ..mark(1) };
        let found = [
            StoreLoss::find(None, StoredProof::Mark(mark(9)), false),
            StoreLoss::find(Some(mark(9)), StoredProof::Mark(other), false),
            StoreLoss::find(Some(mark(9)), StoredProof::Missing, true),
            StoreLoss::find(Some(mark(9)), StoredProof::Damaged, false),
        ];
        let expected = [
            StoreLoss::Emptied { proved: mark(9) },
            StoreLoss::ForeignProof { stored: mark(9), proved: other },
            StoreLoss::ProofRemoved { stored: mark(9) },
            StoreLoss::ProofDamaged { stored: Some(mark(9)) },
        ];
        assert_eq!(found, expected.map(Some));
    }
}
