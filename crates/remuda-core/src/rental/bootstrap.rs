//! Progress of installing a worker over SSH on a machine whose image starts none.

/// The state of the SSH bootstrap of a machine's worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bootstrap {
    /// `before`: why the last try failed, if this is not the first.
    Running {
        before: Option<String>,
    },
    /// The machine did not answer, for this reason; retried when the provider next lists the machine.
    Retrying(String),
    Done,
}

impl Bootstrap {
    /// Another try begins.
    pub fn again(former: Option<&Bootstrap>) -> Bootstrap {
        Bootstrap::Running { before: former.and_then(Bootstrap::failure).map(str::to_owned) }
    }

    /// Why the last try failed.
    pub fn failure(&self) -> Option<&str> {
        match self {
            Bootstrap::Running { before } => before.as_deref(),
            Bootstrap::Retrying(why) => Some(why),
            Bootstrap::Done => None,
        }
    }

    pub fn describe(&self) -> String {
        match (self, self.failure()) {
            (_, Some(why)) => format!("retrying: {why}"),
            (Bootstrap::Done, None) => "done".to_owned(),
            (Bootstrap::Running { .. } | Bootstrap::Retrying(_), None) => "running".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_stays_in_sight_while_it_is_tried_again() {
        let first = Bootstrap::again(None);
        assert_eq!(first.describe(), "running");
        let failed = Bootstrap::Retrying("port: connection refused".to_owned());
        let again = Bootstrap::again(Some(&failed));
        assert_eq!(again.describe(), "retrying: port: connection refused");
        assert_eq!(Bootstrap::again(Some(&again)).describe(), "retrying: port: connection refused");
        assert_eq!(Bootstrap::Done.describe(), "done");
    }
}
