//! Who asks, and what that one may see and do.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use remuda_core::id::Tenant;

use super::{Context, Problem};

/// Who asks, as the token says. On loopback without tokens anyone may do everything.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Whose jobs it may see; nothing if it may see everybody's.
    tenant: Option<Tenant>,
}

impl Caller {
    /// The tenant that a submission of this caller belongs to; whoever belongs to one cannot speak for another.
    pub fn tenant(&self, asked: Option<&Tenant>) -> Result<Tenant, Problem> {
        match (&self.tenant, asked) {
            (Some(own), Some(asked)) if own != asked => {
                let message = format!("this token is for tenant {own}, not {asked}");
                Err(Problem::new(axum::http::StatusCode::FORBIDDEN, "forbidden", message))
            }
            (Some(own), _) => Ok(own.clone()),
            (None, Some(asked)) => Ok(asked.clone()),
            (None, None) => Ok("default".parse()?),
        }
    }

    /// Whether it may know of something that belongs to this tenant; if not, it is told that there is nothing (404).
    pub fn may_see(&self, tenant: &Tenant) -> bool {
        self.tenant.as_ref().is_none_or(|own| own == tenant)
    }

    /// To what a listing is narrowed; nothing if it is not.
    pub fn only(&self) -> Option<&Tenant> {
        self.tenant.as_ref()
    }
}

impl FromRequestParts<Context> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, _: &Context) -> Result<Self, Infallible> {
        Ok(Caller { tenant: None })
    }
}
