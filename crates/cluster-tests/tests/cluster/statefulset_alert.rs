//! The alert about a `StatefulSet` that was not rolled out: the two known forms of the public rule
//! and our replacement, on series of real objects.

//!
//! kube-state-metrics does not run here. Its series are derived from the objects as its
//! documentation describes them: they are copies of fields.

use anyhow::{Context as _, Result};
use cluster_tests::operator::PLATFORM;
use cluster_tests::scenario::{Scenario, rpc};
use cluster_tests::{minor, wait_for};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::alerts::Scraped;
use crate::recording::{Fires, OVERRIDE, Recording, Scrape, file};

const PUBLISHED: &str = "crates/cluster-tests/testdata/statefulset-published.yaml";
const CHANGED: &str = "crates/cluster-tests/testdata/statefulset-changed.yaml";

const ALERT: &str = "KubeStatefulSetUpdateNotRolledOut";

/// Longer than the `for` of the rule plus its five minutes without changes.
const MINUTES: usize = 30;

/// The series of kube-state-metrics for a StatefulSet.
fn state_metrics(set: &StatefulSet) -> Result<Scrape> {
    let status = set.status.as_ref().context("the StatefulSet has no status")?;
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    let name = set.metadata.name.as_deref().unwrap_or_default();
    let target = "job=\"kube-state-metrics\",instance=\"10.0.0.9:8080\"";
    let labels = format!("{target},namespace=\"{namespace}\",statefulset=\"{name}\"");
    let number = |metric: &str, value: Option<i32>| {
        (format!("kube_statefulset_{metric}{{{labels}}}"), f64::from(value.unwrap_or(0)))
    };
    let revision = |metric: &str, value: &Option<String>| {
        let value = value.as_deref().unwrap_or_default();
        (format!("kube_statefulset_{metric}{{{labels},revision=\"{value}\"}}"), 1.0)
    };
    Ok(Scrape::from([
        number("replicas", set.spec.replicas),
        number("status_replicas", Some(status.replicas)),
        number("status_replicas_updated", status.updated_replicas),
        revision("status_current_revision", &status.current_revision),
        revision("status_update_revision", &status.update_revision),
    ]))
}

/// Checks which of the three rules fire when `now` has lasted for half an hour after a healthy
/// state.
fn check_pages(before: &Scrape, now: &Scrape, expected: [bool; 3]) -> Result<()> {
    let mut recording = Recording::default();
    let healthy = recording.hold(before.clone(), MINUTES);
    let over = recording.hold(now.clone(), MINUTES);
    let label = |name: &str| {
        let series = now.keys().find(|series| series.starts_with("kube_statefulset_replicas{"));
        let value = series.and_then(|series| series.split(&format!("{name}=\"")).nth(1));
        value.and_then(|rest| rest.split('"').next()).unwrap_or_default().to_owned()
    };
    for (path, is_paged) in [PUBLISHED, CHANGED, OVERRIDE].into_iter().zip(expected) {
        let mut labels =
            vec![("namespace", label("namespace")), ("statefulset", label("statefulset"))];
        if path != OVERRIDE {
            labels.push(("job", label("job")));
        }
        let fires = Fires { alert: ALERT, labels, value: "1".to_owned() };
        let at = [(healthy, vec![]), (over, if is_paged { vec![fires] } else { vec![] })];
        recording.check_alerts(&[file(path)], &at).with_context(|| path.to_owned())?;
    }
    Ok(())
}

/// Changes the template manually, without a roll.
async fn edit_template(scenario: &Scenario, image: &str) -> Result<StatefulSet> {
    let containers = json!([{ "name": "cosmos-exporter", "image": image }]);
    let patch = json!({ "spec": { "template": { "spec": { "containers": containers } } } });
    let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
    let edited = scenario.statefulsets().patch("rpc", &params, &patch).await?;
    wait_for("the controller has observed the template", async || {
        let set = scenario.statefulsets().get("rpc").await?;
        let status = set.status.clone().unwrap_or_default();
        let is_observed = status.observed_generation >= edited.metadata.generation;
        Ok((is_observed && status.updated_replicas.unwrap_or(0) == 0).then_some(set))
    })
    .await
}

#[tokio::test]
async fn a_finished_roll_does_not_page_and_a_template_that_was_not_rolled_does() -> Result<()> {
    let mut scenario = Scenario::open("alert-set").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let before = state_metrics(&scenario.until_statefulset_is_current("rpc").await?)?;
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.settled("rpc").await?;
    let rolled = state_metrics(&scenario.until_statefulset_is_current("rpc").await?)?;
    // Before 1.37 the current revision stays behind, which is what the changed rule pages for.
    check_pages(&before, &rolled, [false, minor() == "1.34", false])?;
    scenario.kill_operator();
    let unrolled = state_metrics(&edit_template(&scenario, "exporter:manual").await?)?;
    check_pages(&before, &unrolled, [true, true, true])?;
    scenario.close().await
}

/// A node taken over from another operator, which wrote a template that no pod was created from.
#[tokio::test]
async fn a_template_that_is_held_back_does_not_page() -> Result<()> {
    let mut scraped = Scraped::open("alert-set-held").await?;
    scraped.scenario.run("rpc", rpc("seid:v1")).await?;
    let before = state_metrics(&scraped.scenario.until_statefulset_is_current("rpc").await?)?;
    scraped.scenario.kill_operator();
    let scenario = &scraped.scenario;
    // The pod has no recorded template, the template that it was created from is replaced, and the
    // platform renders a third one.
    scenario.wipe_status("rpc").await?;
    edit_template(scenario, "exporter:other").await?;
    let platform = PLATFORM.replace("exporter:v1", "exporter:v2");
    scraped.start_operator(&platform).await?;
    let held = "seinode_drifted{NS,name=\"rpc\",reason=\"AdoptedWithDrift\"} 1";
    let mut now = scraped.until(&[held]).await?;
    let set = state_metrics(&scraped.scenario.statefulsets().get("rpc").await?)?;
    now.extend(set.clone());
    check_pages(&before, &now, [true, true, false])?;
    // No page for any other reason that holds the roll on purpose; a page while it should roll.
    for (reason, is_paged) in
        [("Held", false), ("Paused", false), ("WaitingForSlot", false), ("BackingOff", true)]
    {
        let renamed = |series: &String| series.replace("AdoptedWithDrift", reason);
        let now = now.iter().map(|(series, value)| (renamed(series), *value)).collect();
        check_pages(&before, &now, [true, true, is_paged]).context(reason)?;
    }
    // The same StatefulSet without an operator that holds the roll.
    check_pages(&before, &set, [true, true, true])?;
    Ok(())
}
