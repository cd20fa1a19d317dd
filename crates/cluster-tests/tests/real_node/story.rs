//! What every story needs.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::Instant;

/// Polls until `check` returns a value.
pub(crate) async fn until<T>(
    claim: &str,
    within: Duration,
    mut check: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(value) = check().await? {
            return Ok(value);
        }
        if Instant::now() > deadline {
            bail!("timed out after {} s waiting until {claim}", within.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
