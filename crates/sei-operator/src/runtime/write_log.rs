//! One line in the log for each write: what was changed, by which task of which plan, and why.

use std::time::Instant;

use sei_api::key::ObjectKey;
use sei_plan::request::{Purpose, Write};

/// A write that is in progress.
pub struct LoggedWrite {
    write: Write,
    purpose: Purpose,
    begun: Instant,
}

impl LoggedWrite {
    pub fn begin(write: Write, purpose: Purpose) -> Self {
        Self { write, purpose, begun: Instant::now() }
    }

    pub fn end(self, node: &ObjectKey, failure: Option<&str>) {
        let Write { verb, kind, name, uid } = self.write;
        let Purpose { plan, task, why } = self.purpose;
        let outcome = failure.unwrap_or("accepted");
        let milliseconds = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(
            %node, plan, task, verb, kind, name, uid, outcome, milliseconds, why, "write"
        );
    }
}
