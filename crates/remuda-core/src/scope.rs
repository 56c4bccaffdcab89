//! What a block or a quarantine holds apart. A failure says something about the workflow that failed; it says something
//! about a shape only with more evidence, and about another tenant's jobs only with evidence from that tenant.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{Hash, Shape, Tenant, WorkflowHash};

/// The jobs of one shape that one tenant submitted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TenantShape {
    pub shape: Shape,
    pub tenant: Tenant,
}

/// The jobs that a worker does not get while it is blocked for them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockScope {
    /// One exact workflow.
    Workflow(WorkflowHash),
    /// Every workflow of a shape, of one tenant.
    Tenant(TenantShape),
    /// Every workflow of a shape.
    Shape(Shape),
}

impl TenantShape {
    /// A key for stores, in the order of the values.
    pub fn key(&self) -> Vec<u8> {
        [self.shape.as_bytes(), self.tenant.as_str().as_bytes()].concat()
    }
}

impl BlockScope {
    /// One word for APIs.
    pub fn name(&self) -> &'static str {
        match self {
            BlockScope::Workflow(_) => "workflow",
            BlockScope::Tenant(_) => "tenant",
            BlockScope::Shape(_) => "shape",
        }
    }

    /// A key for stores, in the order of the values.
    pub fn key(&self) -> Vec<u8> {
        match self {
            BlockScope::Workflow(hash) => [&[0], &hash.as_bytes()[..]].concat(),
            BlockScope::Tenant(those) => [&[1], &those.key()[..]].concat(),
            BlockScope::Shape(shape) => [&[2], &shape.as_bytes()[..]].concat(),
        }
    }

    /// Whether this hash names it: of the workflow, or of the shape.
    pub fn is_named(&self, name: Hash) -> bool {
        match self {
            BlockScope::Workflow(hash) | BlockScope::Shape(hash) => *hash == name,
            BlockScope::Tenant(those) => those.shape == name,
        }
    }
}

impl fmt::Display for BlockScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockScope::Workflow(hash) => write!(f, "workflow {}", hash.short()),
            BlockScope::Tenant(TenantShape { shape, tenant }) => {
                write!(f, "shape {} of tenant {tenant}", shape.short())
            }
            BlockScope::Shape(shape) => write!(f, "shape {}", shape.short()),
        }
    }
}
