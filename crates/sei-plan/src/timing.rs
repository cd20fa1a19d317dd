//! Every wait and deadline of the operator, in one value.

use std::time::Duration;

use sei_api::condition::{ConditionType, REASONS, Reason};
use sei_api::task::TaskType;

/// The speed of time.
///
/// Production runs at speed 1. Test lanes run the same waits many times faster; no other code
/// depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    speed: u32,
}

impl Default for Timing {
    fn default() -> Self {
        Self { speed: 1 }
    }
}

impl Timing {
    /// All waits and deadlines divided by `speed`; 0 counts as 1.
    pub fn faster(speed: u32) -> Self {
        Self { speed: speed.max(1) }
    }

    fn scaled(self, seconds: u64) -> Duration {
        Duration::from_secs(seconds) / self.speed
    }

    /// Between two reads of something that no watch reports.
    pub fn poll(self) -> Duration {
        self.scaled(5)
    }

    /// Between two probes of the RPC of a node. A height that moves is shown by metrics only, so this
    /// is also the shortest time between two changes of the condition `Halted` by a probe.
    pub fn chain_probe(self) -> Duration {
        self.scaled(30)
    }

    /// How long a chain may make no block before the nodes that wait for one are shown as halted. A
    /// chain with one validator down makes a block in a few seconds.
    pub fn halt(self) -> Duration {
        self.scaled(60)
    }

    /// Between two reconciles of a node at rest: a lost watch event is never repeated.
    pub fn resync(self) -> Duration {
        self.scaled(600)
    }

    /// How long an old pod's sidecar may leave a configuration task unanswered before the update
    /// continues without it.
    pub fn config_answer(self) -> Duration {
        self.scaled(15)
    }

    /// How long an update of a Ready node waits for a pull that neither ends nor fails. A kubelet
    /// fails a pull without progress after a minute or two; a large image takes minutes.
    pub fn pre_pull(self) -> Duration {
        self.scaled(600)
    }

    /// How long a kubelet may take to report anything about the pod that pulls. It is no duration of
    /// ours to be scaled: the kubelet has its own clock.
    pub fn pre_pull_claim(self) -> Duration {
        Duration::from_secs(5)
    }

    /// How often a node checks whether the pull that it shares with others has ended.
    pub fn pre_pull_shared(self) -> Duration {
        Duration::from_millis(500)
    }

    /// How long the pull is awaited for a node that is not Ready, and for a pod that cannot be
    /// scheduled.
    pub fn pre_pull_short(self) -> Duration {
        self.scaled(60)
    }

    /// How long a node must not have been Ready to count as down rather than as starting, or as
    /// unreachable for a short time.
    pub fn outage(self) -> Duration {
        self.scaled(300)
    }

    /// A wait from the platform's configuration.
    pub fn configured(self, seconds: u32) -> Duration {
        self.scaled(u64::from(seconds))
    }

    /// Pause before a task is run again: 10 s, 20 s, then 30 s.
    pub fn task_retry(self, retries: i32) -> Duration {
        let exponent = u32::try_from(retries.clamp(0, 5)).unwrap_or(0);
        self.scaled((5 << exponent).min(30))
    }

    /// How long a sidecar may run a task before another attempt is made. `None` for a restore, which
    /// may take hours. A genesis file is downloaded or uploaded; the other tasks write a few files, or
    /// query two witnesses for 10 s each.
    pub fn task_deadline(self, task_type: TaskType) -> Option<Duration> {
        let seconds = match task_type {
            TaskType::SnapshotRestore => return None,
            TaskType::MarkReady => 60,
            TaskType::ConfigureGenesis
            | TaskType::UploadGenesisArtifacts
            | TaskType::AssembleAndUploadGenesis => 900,
            _ => 180,
        };
        Some(self.scaled(seconds))
    }

    /// Pause before a failed update is retried: 30 s doubling to 10 min.
    pub fn update_retry(self, attempts: i32) -> Duration {
        let doublings = u32::try_from(attempts.saturating_sub(1).clamp(0, 10)).unwrap_or(0);
        self.scaled((30 << doublings).min(600))
    }

    /// How long a reason may last before the node counts as stalled.
    pub fn stall_deadline(self, reason: Reason) -> Duration {
        let row = REASONS
            .iter()
            .find(|row| row.condition == ConditionType::Stalled && row.reason == reason);
        self.scaled(u64::from(row.and_then(|row| row.deadline_seconds).unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // X3
    #[test]
    fn task_retries_wait_ten_twenty_then_thirty_seconds() {
        let waits: Vec<_> =
            (1..=6).map(|retries| Timing::default().task_retry(retries).as_secs()).collect();
        assert_eq!(waits, [10, 20, 30, 30, 30, 30]);
        assert!(Timing::default().task_retry(-3) > Duration::ZERO);
    }

    #[test]
    fn updates_back_off_from_thirty_seconds_to_ten_minutes() {
        let waits: Vec<_> =
            (1..=7).map(|attempts| Timing::default().update_retry(attempts).as_secs()).collect();
        assert_eq!(waits, [30, 60, 120, 240, 480, 600, 600]);
        assert_eq!(Timing::default().update_retry(i32::MAX).as_secs(), 600);
    }

    #[test]
    fn a_faster_lane_divides_every_wait() {
        assert_eq!(Timing::faster(50).poll(), Duration::from_millis(100));
        assert_eq!(Timing::faster(0).poll(), Timing::default().poll());
    }

    #[test]
    fn deadlines_come_from_the_table_of_reasons() {
        let timing = Timing::default();
        assert_eq!(timing.stall_deadline(Reason::ImagePullFailed).as_secs(), 120);
        assert_eq!(timing.stall_deadline(Reason::InvalidSpec).as_secs(), 0);
    }
}
