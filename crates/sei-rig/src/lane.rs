//! A control plane with everything else that scenarios need.

use std::io;

use tokio::runtime::{Builder, Runtime};

use crate::kubelet::{Addresses, Kubelet, Timing};
use crate::plane::{self, ControlPlane, User};
use crate::status_checker::StatusChecker;

#[derive(Debug, thiserror::Error)]
pub enum LaneError {
    #[error("failed to find loopback addresses for pods")]
    Addresses { source: io::Error },
    #[error("failed to start the kubelet's runtime")]
    Runtime { source: io::Error },
    #[error("failed to create the client of the kubelet")]
    Client { source: plane::Error },
}

/// A control plane, its kubelet and its status checker. The kubelet has its own runtime, because the
/// runtime of a test ends with the test.
pub struct Lane {
    // Dropped in this order: clients before servers.
    kubelet: Kubelet,
    checker: StatusChecker,
    runtime: Option<Runtime>,
    plane: ControlPlane,
}

impl Lane {
    pub fn start(plane: ControlPlane) -> Result<Self, LaneError> {
        Self::start_with(plane, Timing::default())
    }

    /// The same with other timing.
    pub fn start_with(plane: ControlPlane, timing: Timing) -> Result<Self, LaneError> {
        let addresses = Addresses::lock().map_err(|source| LaneError::Addresses { source })?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("kubelet")
            .enable_all()
            .build()
            .map_err(|source| LaneError::Runtime { source })?;
        let entered = runtime.enter();
        let client = plane.client(User::Kubelet).map_err(|source| LaneError::Client { source })?;
        let checker = StatusChecker::start(&client);
        let kubelet = Kubelet::start_with(client, addresses, timing);
        drop(entered);
        Ok(Self { kubelet, checker, runtime: Some(runtime), plane })
    }

    pub fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    pub fn checker(&self) -> &StatusChecker {
        &self.checker
    }

    pub fn kubelet(&self) -> &Kubelet {
        &self.kubelet
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting for a runtime inside of another one panics.
            runtime.shutdown_background();
        }
    }
}
