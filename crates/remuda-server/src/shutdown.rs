//! The signal that ends the server. Every task holds a receiver; the value becomes `true` once and stays so.

use tokio::sync::watch;

/// Returns once the program is told to stop, also when the sender is gone.
pub async fn stopped(stopping: &mut watch::Receiver<bool>) {
    drop(stopping.wait_for(|stopping| *stopping).await);
}
