//! What is kept of a prompt's nodes to follow its progress.

/// A node's class and title, for progress messages.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptNode {
    pub class: String,
    /// The title given by the author.
    pub title: Option<String>,
    /// Number of steps, if an input contains it.
    pub steps: Option<f64>,
}

impl PromptNode {
    pub fn name(&self) -> &str {
        self.title.as_deref().unwrap_or(&self.class)
    }
}
