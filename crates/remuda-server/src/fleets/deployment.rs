//! What a deployment has once and for ever, drawn before it rents its first machine: the secret that join tokens are made
//! with, and the name that is part of every tag. In this order: without the name nothing is rented.

use std::sync::Arc;

use anyhow::Context as _;
use remuda_core::plane::{Plane, PlaneEvent};
use tracing::info;

use super::FleetContext;
use crate::http::JoinKey;
use remuda_net::secret::draw;

/// Eight hexadecimal digits: two deployments that share an account will not share a name.
const NAME_BYTES: usize = 4;

pub(super) async fn settle(context: &FleetContext) -> anyhow::Result<()> {
    let FleetContext { plane, access, .. } = context;
    let unsettled = "nothing can be rented, because what rented machines go by could not be stored";
    if access.join_key().is_none() {
        let key = JoinKey::draw()?;
        let document = key.document()?;
        plane.request_queued(PlaneEvent::PutDocument(Arc::new(document))).await.context(unsettled)?;
        access.honour(key);
    }
    let is_nameless = |plane: &Plane, _| plane.deployment().is_none();
    if plane.read(is_nameless).await? {
        let name = draw(NAME_BYTES)?;
        info!(deployment = %name, "every machine this plane rents is tagged with its name");
        plane.request_queued(PlaneEvent::NameDeployment(name)).await.context(unsettled)?;
    }
    Ok(())
}
