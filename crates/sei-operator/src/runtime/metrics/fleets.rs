//! The gauges of fleets.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use sei_api::SeiNodeDeployment;
use sei_api::fleet::{FleetPhase, READY_REASONS, RolloutState, condition_type};
use sei_api::metric;

use super::{Observed, encode_choices, encode_conditions, encode_numbers};

/// The values of a fleet's gauges.
#[derive(Debug)]
pub(super) struct FleetGauges {
    phase: FleetPhase,
    replicas: [(&'static str, i64); 3],
    /// Status and reason of the condition.
    ready: Option<(bool, &'static str)>,
    rollout: Option<RolloutState>,
    progress_seconds: Option<i64>,
    bake_seconds: i64,
}

impl FleetGauges {
    pub(super) fn of(fleet: &SeiNodeDeployment) -> Self {
        let status = fleet.status.clone().unwrap_or_default();
        let ready = status.conditions.iter().find(|it| it.type_ == condition_type::READY);
        let rules = fleet.spec.update_strategy.in_place.clone().unwrap_or_default();
        let canary = rules.canary.map(|canary| canary.bake_seconds);
        let bakes = canary.into_iter().chain(rules.health.and_then(|health| health.bake_seconds));
        let progress = status.rollout.and_then(|rollout| rollout.last_progress_at);
        Self {
            phase: status.phase.unwrap_or(FleetPhase::Pending),
            replicas: [
                ("desired", i64::from(fleet.spec.replicas)),
                ("ready", i64::from(status.ready_replicas.unwrap_or(0))),
                ("updated", i64::from(status.updated_replicas.unwrap_or(0))),
            ],
            ready: ready.map(|ready| {
                let known = READY_REASONS.into_iter().find(|reason| *reason == ready.reason);
                (ready.status == "True", known.unwrap_or("Other"))
            }),
            rollout: fleet.rollout_state(),
            progress_seconds: progress.map(|at| at.0.as_second()),
            bake_seconds: i64::from(bakes.max().unwrap_or(0)),
        }
    }
}

impl Collector for Observed<FleetGauges> {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let fleets = self.lock();
        let encoder = &mut encoder;
        encode_choices(&fleets, encoder, (&metric::SEINODEDEPLOYMENT_PHASE, "phase"), |gauges| {
            FleetPhase::ALL.map(|phase| (phase.as_str(), i64::from(phase == gauges.phase)))
        })?;
        let replicas = (&metric::SEINODEDEPLOYMENT_REPLICAS, "replica_state");
        encode_choices(&fleets, encoder, replicas, |gauges| gauges.replicas)?;
        let ready = &metric::SEINODEDEPLOYMENT_READY;
        encode_conditions(&fleets, encoder, ready, |gauges| gauges.ready)?;
        let rollout = (&metric::SEINODEDEPLOYMENT_ROLLOUT, "state");
        encode_choices(&fleets, encoder, rollout, |gauges| {
            gauges.rollout.map(|state| (state.as_str(), 1))
        })?;
        let progress = &metric::SEINODEDEPLOYMENT_ROLLOUT_PROGRESS;
        encode_numbers(&fleets, encoder, progress, |gauges| gauges.progress_seconds)?;
        encode_numbers(&fleets, encoder, &metric::SEINODEDEPLOYMENT_ROLLOUT_BAKE, |gauges| {
            Some(gauges.bake_seconds)
        })
    }
}
