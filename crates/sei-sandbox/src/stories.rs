//! The stories that can be played on the fleet.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use kube::ResourceExt as _;
use sei_api::condition::{self, ConditionStatus, ConditionType};
use sei_api::status::SeiNodePhase;
use sei_rig::{Behaviour, Rule};
use serde_json::json;

use crate::Scenario;
use crate::fleet::{Fleet, Member, NAMESPACE, NEW, OLD};
use crate::view::View;

/// Bound for any part of a story; a fleet this small needs seconds.
const WITHIN: Duration = Duration::from_secs(120);

/// What a story came to.
pub(crate) struct Figures {
    title: &'static str,
    nodes: usize,
    took: Duration,
    pods_replaced: usize,
    requests: usize,
}

impl Figures {
    pub(crate) fn summary(&self, whole: Duration) -> String {
        let each = self.requests / self.nodes.max(1);
        format!(
            "{}\n  nodes updated          {}\n  from edit to all done  {:.1} s\n  \
             pods replaced          {}\n  API requests           {} ({each} for each node)\n  \
             whole run              {:.1} s",
            self.title,
            self.nodes,
            self.took.as_secs_f64(),
            self.pods_replaced,
            self.requests,
            whole.as_secs_f64(),
        )
    }
}

/// Plays a story to its end.
pub(crate) async fn play(scenario: Scenario, fleet: &Fleet, view: &mut View) -> Result<Figures> {
    view.tell("A fleet of four validators and four RPC nodes is created.");
    fleet.create().await?;
    until(fleet, view, "every node runs and is Ready", |one| runs(one, OLD) && is_ready(one))
        .await?;
    match scenario {
        Scenario::ChainUpgrade => chain_upgrade(fleet, view).await,
        Scenario::TemplateDrift => template_drift(fleet, view).await,
        Scenario::BadImage => bad_image(fleet, view).await,
        Scenario::Rollback => rollback(fleet, view).await,
    }
}

async fn chain_upgrade(fleet: &Fleet, view: &mut View) -> Result<Figures> {
    view.tell("The chain halts at its upgrade height: every pod runs, none is Ready.");
    fleet.kubelet().behave(NAMESPACE, Rule::new(Behaviour::Halted).of_image(OLD));
    until(fleet, view, "every node is unready", |one| !is_ready(one)).await?;
    view.tell("The image is bumped. Plans replace every pod, unready as they are.");
    let told = "Chain upgrade: the chain has resumed on the new image.";
    roll(fleet, view, told, json!({ "image": NEW }), |one| runs(one, NEW) && is_ready(one)).await
}

async fn template_drift(fleet: &Fleet, view: &mut View) -> Result<Figures> {
    view.tell("A label is added to every pod. Validators take turns, RPC nodes need not.");
    let labels = json!({ "podLabels": { "team": "core" } });
    let told = "Template drift: every pod carries the label.";
    roll(fleet, view, told, labels, |one| {
        let updated = one.node.status.as_ref().is_some_and(|status| status.last_update.is_some());
        updated && runs(one, OLD) && is_ready(one)
    })
    .await
}

async fn bad_image(fleet: &Fleet, view: &mut View) -> Result<Figures> {
    view.tell("An image is asked for that nobody can pull.");
    let bad = "registry.example.org/seid:v6.6.O";
    fleet.kubelet().behave(NAMESPACE, Rule::new(Behaviour::ImageUnpullable).of_image(bad));
    let names = names(&fleet.members().await?);
    fleet.edit(&names, json!({ "image": bad })).await?;
    until(fleet, view, "every pod fails to pull it", |one| {
        one.pod.as_ref().is_some_and(|pod| !pod.troubles.is_empty())
    })
    .await?;
    view.tell("The typo is corrected. Nobody has to touch a pod.");
    let told = "Bad image: corrected by an edit.";
    roll(fleet, view, told, json!({ "image": NEW }), |one| runs(one, NEW) && is_ready(one)).await
}

async fn rollback(fleet: &Fleet, view: &mut View) -> Result<Figures> {
    view.tell("The image is bumped to one that crashes.");
    fleet.kubelet().behave(NAMESPACE, Rule::new(Behaviour::Crashes).of_image(NEW));
    let names = names(&fleet.members().await?);
    fleet.edit(&names, json!({ "image": NEW })).await?;
    until(fleet, view, "every pod crashes", |one| {
        one.pod.as_ref().is_some_and(|pod| !pod.troubles.is_empty())
    })
    .await?;
    view.tell("The old image is asked for again.");
    let told = "Rollback: the fleet is back on the old image.";
    roll(fleet, view, told, json!({ "image": OLD }), |one| runs(one, OLD) && is_ready(one)).await
}

/// Edits every node and waits until all have arrived.
async fn roll(
    fleet: &Fleet,
    view: &mut View,
    title: &'static str,
    spec: serde_json::Value,
    arrived: impl Fn(&Member) -> bool,
) -> Result<Figures> {
    let before = fleet.members().await?;
    fleet.requests()?;
    let began = Instant::now();
    fleet.edit(&names(&before), spec).await?;
    let after = until(fleet, view, "every node has arrived", arrived).await?;
    let took = began.elapsed();
    let old = uids(&before);
    Ok(Figures {
        title,
        nodes: after.len(),
        took,
        pods_replaced: uids(&after).difference(&old).count(),
        requests: fleet.requests()?.len(),
    })
}

/// Shows the fleet until this holds of every node.
async fn until(
    fleet: &Fleet,
    view: &mut View,
    claim: &str,
    holds: impl Fn(&Member) -> bool,
) -> Result<Vec<Member>> {
    let deadline = Instant::now() + WITHIN;
    loop {
        let members = fleet.members().await?;
        let done = members.iter().filter(|member| holds(member)).count();
        view.show(&members, done);
        if done == members.len() && !members.is_empty() {
            return Ok(members);
        }
        if Instant::now() > deadline {
            bail!("{} s have passed and it is not so that {claim}", WITHIN.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

fn names(members: &[Member]) -> Vec<String> {
    members.iter().map(|member| member.node.name_any()).collect()
}

fn uids(members: &[Member]) -> BTreeSet<String> {
    members.iter().filter_map(|member| Some(member.pod.as_ref()?.uid.clone())).collect()
}

/// The node was seen running this image, and nothing is left to do.
fn runs(member: &Member, image: &str) -> bool {
    let Some(status) = &member.node.status else { return false };
    status.phase == Some(SeiNodePhase::Running)
        && status.plan.is_none()
        && status.current_image.as_deref() == Some(image)
        && condition::is(
            &status.conditions,
            ConditionType::PodTemplateDrift,
            ConditionStatus::False,
        )
}

fn is_ready(member: &Member) -> bool {
    member.pod.as_ref().is_some_and(|pod| pod.ready)
}
