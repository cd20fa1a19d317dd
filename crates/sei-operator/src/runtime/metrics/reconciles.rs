//! Reconciles by controller: how many, how long, and how many wait.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use sei_api::metric;

use super::{Buckets, gauge_family};
use crate::runtime::controller::InFlight;

const BUCKETS: [f64; 10] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0];

/// What is counted of reconciles.
#[derive(Clone, Debug)]
pub(super) struct ReconcileMetrics {
    pub(super) durations: Family<ResultLabels, Histogram, Buckets>,
    pub(super) waiting: Family<ControllerLabels, Gauge>,
    pub(super) in_flight: Arc<Followed>,
}

impl Default for ReconcileMetrics {
    fn default() -> Self {
        Self {
            durations: Family::new_with_constructor(Buckets(&BUCKETS)),
            waiting: Family::default(),
            in_flight: Arc::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ResultLabels {
    controller: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ControllerLabels {
    controller: String,
}

impl ReconcileMetrics {
    /// The series of one controller, which exist from then on. A reconcile searches for none.
    pub(super) fn of(&self, kind: &str) -> ControllerMetrics {
        let controller = kind.to_lowercase();
        let durations = ["success", "requeue_after", "error"].map(|result| {
            let labels = ResultLabels { controller: controller.clone(), result };
            self.durations.get_or_create_owned(&labels)
        });
        self.in_flight.lock().controllers.push(kind.to_owned());
        let waiting = self.waiting.get_or_create_owned(&ControllerLabels { controller });
        ControllerMetrics { durations, waiting }
    }
}

/// The series of one controller.
#[derive(Clone, Debug)]
pub struct ControllerMetrics {
    durations: [Histogram; 3],
    /// Reconciles that wait for a slot.
    pub waiting: Gauge,
}

impl ControllerMetrics {
    /// Counts a reconcile: `Ok` with the time after which it is repeated.
    pub fn reconciled<E>(&self, result: &Result<Option<Duration>, E>, duration: Duration) {
        let [success, requeue_after, error] = &self.durations;
        let durations = match result {
            Ok(None) => success,
            Ok(Some(_)) => requeue_after,
            Err(_) => error,
        };
        durations.observe(duration.as_secs_f64());
    }
}

/// What is being reconciled, shown by controller.
#[derive(Debug, Default)]
pub(super) struct Followed(Mutex<FollowedControllers>);

#[derive(Debug, Default)]
pub(super) struct FollowedControllers {
    pub(super) in_flight: InFlight,
    /// Their kinds.
    controllers: Vec<String>,
}

impl Followed {
    pub(super) fn lock(&self) -> MutexGuard<'_, FollowedControllers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for Followed {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let followed = self.lock();
        let of_controllers: Vec<(String, i64, f64)> = followed
            .controllers
            .iter()
            .map(|kind| {
                let (count, oldest) = followed.in_flight.of(kind);
                (
                    kind.to_lowercase(),
                    i64::try_from(count).unwrap_or(i64::MAX),
                    oldest.as_secs_f64(),
                )
            })
            .collect();
        let mut family = gauge_family(&mut encoder, &metric::RECONCILE_IN_FLIGHT)?;
        for (controller, count, _) in &of_controllers {
            family.encode_family(&[("controller", controller)])?.encode_gauge(count)?;
        }
        let mut family = gauge_family(&mut encoder, &metric::RECONCILE_OLDEST)?;
        for (controller, _, oldest) in &of_controllers {
            family.encode_family(&[("controller", controller)])?.encode_gauge(oldest)?;
        }
        Ok(())
    }
}
