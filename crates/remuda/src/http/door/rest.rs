//! The rest of what stock clients and the web interface ask for, answered as a plain server would.

use serde_json::{Value, json};

use super::super::Context;

pub(super) fn features(context: &Context) -> Value {
    json!({ "supports_preview_metadata": true, "max_upload_size": context.blobs.size_max() })
}
