//! Progress of installing a worker over SSH on a machine whose image starts none.

/// The state of the SSH bootstrap of a machine's worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bootstrap {
    Running,
    /// The machine did not answer, for this reason; retried when the provider next lists the machine.
    Retrying(String),
    Done,
}

impl Bootstrap {
    pub fn describe(&self) -> String {
        match self {
            Bootstrap::Running => "running".to_owned(),
            Bootstrap::Retrying(why) => format!("retrying: {why}"),
            Bootstrap::Done => "done".to_owned(),
        }
    }
}
