//! What may happen in a run: calls of the operator, steps of controllers, faults, and users.

use crate::caches::Kind;
use crate::operator::CallFault;
use crate::random::Random;

/// One event. Numbers select a node, a pod or a fault; they are taken modulo what there is, so that
/// events stay meaningful when others are removed from a script.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A reconcile begins and is performed up to its end.
    Reconcile(usize),
    Begin(usize),
    /// The next call of a reconcile that is under way.
    Call(usize, CallFault),
    /// The operator is killed, and starts again.
    Crash,
    /// Another replica gets the lease. One call of the former leader is still on its way.
    LeaderChange(usize),
    /// That call arrives.
    LateCall,
    /// A watch delivers.
    Sync(Kind),
    SyncAll,
    Probe(usize),
    Wait(i64),
    /// The clock of the operator differs from the cluster's from now on.
    ClockAhead(i64),
    ObserveSet(usize),
    ScaleSet(usize),
    /// By a controller that took over with an old cache.
    ScaleSetStale(usize),
    Kubelet(usize),
    Sidecar(usize),
    CollectGarbage,
    Pull(usize),
    Job(usize),
    /// Every controller and kubelet takes a step.
    RunAll,
    /// Watches deliver, every node is reconciled, and everything takes a step.
    Round,
    User(usize, Act),
    Fault(usize, Fault),
}

/// What users do to a node and its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Image(u8),
    Label(u8),
    Override(u8),
    PauseUpdates(bool),
    Pause(bool),
    HandsOff(bool),
    HoldOperatorChanges(bool),
    Delete,
    Create,
    RemoveFinalizers,
    WipeStatus,
    RemovePlan,
    WipeAnnotations,
    WipeSetAnnotations,
    ForgeHash,
    ForgeImage,
    Approve,
    Retry,
    Restart,
    Platform(u8),
    DeleteSet,
    DeleteSetOrphan,
    DeleteSetForeground,
    Scale(u8),
    EditTemplate(u8),
    RollingUpdate,
    DeletePod,
    DeleteClaim,
    DeleteService,
    EditService,
    DeleteSecrets,
    RestoreSecrets,
    ForgePod,
    ForgePodName,
    DeleteJob,
}

/// What breaks in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Halt(bool),
    /// The pod fails on its machine.
    Evict,
    LoseSidecar,
    RestartSidecar,
    FailConfig(bool),
    FailMarkReady(bool),
    StuckPods(bool),
    FailJob,
}

/// A script for a seed.
pub fn script(random: &mut Random) -> Vec<Event> {
    let length = 10 + random.below(70);
    // Many seeds are calm enough for long stories; few have everything at once.
    let intensity = random.pick(&[8, 20, 40]);
    let faulty = random.pick(&[0, 5, 25]);
    (0..length).map(|_| event(random, intensity, faulty)).collect()
}

fn event(random: &mut Random, intensity: usize, faulty: usize) -> Event {
    let which = random.below(8);
    if random.chance(intensity) {
        return match random.below(3) {
            0 => Event::Fault(which, fault(random)),
            _ => Event::User(which, act(random)),
        };
    }
    match random.below(40) {
        0..=7 => Event::Reconcile(which),
        8..=9 => Event::Begin(which),
        10..=17 => Event::Call(which, call_fault(random, faulty)),
        18 => Event::Crash,
        19 => Event::LeaderChange(which),
        20 => Event::LateCall,
        21..=22 => Event::Sync(random.pick(&Kind::ALL)),
        23..=25 => Event::SyncAll,
        26 => Event::Probe(which),
        27..=28 => Event::Wait(random.pick(&[1, 5, 20, 60, 130, 700, 2000])),
        29 => match random.below(3) {
            0 => Event::ClockAhead(random.pick(&[-3600, -40, 40, 3600, 0])),
            _ => Event::Wait(10),
        },
        30 => Event::ObserveSet(which),
        31 => Event::ScaleSet(which),
        32 => match random.below(4) {
            0 => Event::ScaleSetStale(which),
            _ => Event::Kubelet(which),
        },
        33 => Event::Kubelet(which),
        34 => Event::Sidecar(which),
        35 => random.pick(&[Event::CollectGarbage, Event::Pull(which), Event::Job(which)]),
        36..=37 => Event::RunAll,
        _ => Event::Round,
    }
}

fn call_fault(random: &mut Random, percent: usize) -> CallFault {
    if !random.chance(percent) {
        return CallFault::None;
    }
    random.pick(&[CallFault::Refused, CallFault::Conflict, CallFault::AnswerLost])
}

fn act(random: &mut Random) -> Act {
    let flag = random.chance(50);
    match random.below(50) {
        0..=9 => Act::Image(random.pick(&[1, 1, 2, 2, 3, 4, 5])),
        10..=12 => Act::Label(random.pick(&[0, 1, 2])),
        13 => Act::Override(random.pick(&[0, 1])),
        14 => Act::PauseUpdates(flag),
        15 => Act::Pause(flag),
        16 => Act::HandsOff(flag),
        17 => Act::HoldOperatorChanges(flag),
        18 => Act::Delete,
        19..=20 => Act::Create,
        21 => random.pick(&[Act::RemoveFinalizers, Act::DeleteJob]),
        22 => Act::WipeStatus,
        23 => Act::RemovePlan,
        24 => random.pick(&[Act::WipeAnnotations, Act::WipeSetAnnotations]),
        25 => random.pick(&[Act::ForgeHash, Act::ForgeImage]),
        26 => Act::Approve,
        27 => Act::Retry,
        28 => Act::Restart,
        29..=30 => Act::Platform(random.pick(&[0, 1])),
        31 => Act::DeleteSet,
        32 => Act::DeleteSetOrphan,
        33 => Act::DeleteSetForeground,
        34..=35 => Act::Scale(random.pick(&[0, 1, 2])),
        36..=37 => Act::EditTemplate(random.pick(&[1, 2])),
        38 => Act::RollingUpdate,
        42 => Act::DeleteClaim,
        43 => random.pick(&[Act::DeleteService, Act::EditService]),
        44 => Act::DeleteSecrets,
        45..=46 => Act::RestoreSecrets,
        47 => Act::ForgePod,
        48 => Act::ForgePodName,
        // Also 39 to 41.
        _ => Act::DeletePod,
    }
}

fn fault(random: &mut Random) -> Fault {
    let flag = random.chance(50);
    match random.below(10) {
        0..=1 => Fault::Halt(flag),
        2..=3 => Fault::Evict,
        4 => Fault::LoseSidecar,
        5 => Fault::RestartSidecar,
        6 => Fault::FailConfig(flag),
        7 => Fault::FailMarkReady(flag),
        8 => Fault::StuckPods(flag),
        _ => Fault::FailJob,
    }
}
