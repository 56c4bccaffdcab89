//! The identity of a deployment, created before it rents its first machine and never changed: the secret that join tokens
//! are derived from, and the name that is part of every tag. In this order: without the name no machine is rented.

use std::sync::Arc;

use anyhow::Context as _;
use remuda_core::plane::{Plane, PlaneEvent};
use tracing::info;

use super::FleetContext;
use crate::join_key::JoinKey;
use remuda_net::secret::random_hex;

/// Eight hexadecimal digits: two deployments that share an account will not share a name.
const NAME_BYTES: usize = 4;

pub(super) async fn ensure_identity(context: &FleetContext) -> anyhow::Result<()> {
    let FleetContext { plane, join_key, .. } = context;
    let not_stored = "the identity of this deployment could not be stored; no machine can be rented";
    if join_key.current().is_none() {
        let key = JoinKey::draw()?;
        let document = key.document()?;
        plane.request_queued(PlaneEvent::PutDocument(Arc::new(document))).await.context(not_stored)?;
        join_key.set(key);
    }
    let has_no_name = |plane: &Plane, _| plane.deployment().is_none();
    if plane.read(has_no_name).await? {
        let name = random_hex(NAME_BYTES)?;
        info!(deployment = %name, "deployment named; every rented machine is tagged with it");
        plane.request_queued(PlaneEvent::NameDeployment(name)).await.context(not_stored)?;
    }
    Ok(())
}
