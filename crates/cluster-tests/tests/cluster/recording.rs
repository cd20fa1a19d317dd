//! Recorded series of real runs, evaluated by promtool.
//!
//! The scrapes are real, their durations are not: an alert about a whole day must not take a day to
//! test. So a recording is a list of scrapes, each of which is held for some minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

pub(crate) const ALERTS: &str = "charts/sei-operator/files/rules.yaml";
pub(crate) const OVERRIDE: &str = "charts/sei-operator/files/statefulset-override.yaml";

/// A file of this repository.
pub(crate) fn file(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A series with its labels in its own braces, as promtool takes it, and a value.
pub(crate) type Scrape = BTreeMap<String, f64>;

/// Parses the series of a text that was scraped from this target.
pub(crate) fn scrape(text: &str, job: &str, instance: &str) -> Result<Scrape> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let series = lines.map(|line| {
        let (series, value) = line.rsplit_once(' ').with_context(|| line.to_owned())?;
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let target = format!("job=\"{job}\",instance=\"{instance}\"");
        let comma = if labels == "}" { "" } else { "," };
        let value = value.parse().with_context(|| line.to_owned())?;
        Ok((format!("{name}{{{target}{comma}{labels}"), value))
    });
    series.collect()
}

/// Scrapes, each with the minutes that it is held.
#[derive(Clone, Default)]
pub(crate) struct Recording {
    scrapes: Vec<(Scrape, usize)>,
    start: Option<Timestamp>,
}

/// An expected firing alert.
#[derive(Clone, Debug)]
pub(crate) struct Fires {
    pub(crate) alert: &'static str,
    pub(crate) labels: Vec<(&'static str, String)>,
    /// The value of the expression, as a template prints it.
    pub(crate) value: String,
}

impl Recording {
    /// Sets the time of the first scrape.
    pub(crate) fn begin(&mut self, at: Timestamp) {
        self.start = Some(at);
    }

    /// Appends a scrape that is held for so many minutes. Returns the last of these minutes.
    pub(crate) fn hold(&mut self, scrape: Scrape, minutes: usize) -> usize {
        self.scrapes.push((scrape, minutes));
        self.scrapes.iter().map(|(_, minutes)| minutes).sum::<usize>() - 1
    }

    fn input_series(&self) -> Vec<Value> {
        let names: BTreeSet<&String> =
            self.scrapes.iter().flat_map(|(scrape, _)| scrape.keys()).collect();
        let values = |name: &String| {
            let held = self.scrapes.iter().map(|(scrape, minutes)| match scrape.get(name) {
                // promtool's notation for this many more samples of the same value.
                Some(value) => format!("{value}x{}", minutes - 1),
                None => format!("_x{minutes}"),
            });
            held.collect::<Vec<_>>().join(" ")
        };
        names.into_iter().map(|name| json!({ "series": name, "values": values(name) })).collect()
    }

    /// Checks that exactly these alerts of the rules fire at these minutes.
    pub(crate) fn check_alerts(&self, rules: &[PathBuf], at: &[(usize, Vec<Fires>)]) -> Result<()> {
        let mut tests = Vec::new();
        for rule in alerts(rules)? {
            for (minute, fires) in at {
                let expected = fires.iter().filter(|fires| fires.alert == rule.alert);
                let expected: Vec<Value> = expected.map(|fires| rule.firing(fires)).collect();
                let name = &rule.alert;
                tests.push(json!({ "eval_time": format!("{minute}m"), "alertname": name,
                    "exp_alerts": expected }));
            }
        }
        self.promtool(rules, &json!({ "alert_rule_test": tests }))
    }

    /// Checks that each of these queries returns data at this minute.
    pub(crate) fn check_queries(&self, minute: usize, queries: &[String]) -> Result<()> {
        let test = |query: &String| {
            json!({ "expr": format!("count({query}) > bool 0"), "eval_time": format!("{minute}m"),
                "exp_samples": [{ "labels": "{}", "value": 1 }] })
        };
        let tests: Vec<Value> = queries.iter().map(test).collect();
        self.promtool(&[], &json!({ "promql_expr_test": tests }))
    }

    fn promtool(&self, rules: &[PathBuf], tests: &Value) -> Result<()> {
        let mut group = tests.clone();
        group["interval"] = json!("1m");
        group["input_series"] = json!(self.input_series());
        if let Some(start) = self.start {
            group["start_timestamp"] = json!(start.to_string());
        }
        let text = json!({ "rule_files": rules, "evaluation_interval": "1m", "tests": [group] });
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("test.yaml");
        std::fs::write(&path, serde_json::to_string_pretty(&text)?)?;
        let output = Command::new(sei_rig::tool("promtool")?)
            .args(["test", "rules"])
            .arg(&path)
            .output()
            .context("failed to start promtool")?;
        let output_text =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        ensure!(output.status.success(), "{}\n{text:#}", output_text.join("\n"));
        Ok(())
    }
}

#[derive(Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

/// An alert as defined in its file.
#[derive(Deserialize)]
pub(crate) struct Rule {
    pub(crate) alert: String,
    pub(crate) labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

/// Every alert of these files.
pub(crate) fn alerts(rules: &[PathBuf]) -> Result<Vec<Rule>> {
    let mut alerts = Vec::new();
    for path in rules {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let rules: Rules = serde_saphyr::from_str(&text)?;
        alerts.extend(rules.groups.into_iter().flat_map(|group| group.rules));
    }
    Ok(alerts)
}

impl Rule {
    /// The firing alert in the format that promtool expects.
    fn firing(&self, fires: &Fires) -> Value {
        let mut labels = self.labels.clone();
        labels.extend(fires.labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        let annotations: BTreeMap<&String, String> =
            self.annotations.iter().map(|(name, text)| (name, expanded(text, fires))).collect();
        json!({ "exp_labels": labels, "exp_annotations": annotations })
    }
}

/// An annotation with its templates expanded.
fn expanded(template: &str, fires: &Fires) -> String {
    let mut text = template
        .replace("{{ $value }}", &fires.value)
        .replace("{{ $value | humanizeDuration }}", &fires.value)
        .replace("{{ $value | humanizePercentage }}", &fires.value);
    for (name, value) in &fires.labels {
        text = text.replace(&format!("{{{{ $labels.{name} }}}}"), value);
    }
    text
}

/// An expected alert of a node.
pub(crate) fn of_node(alert: &'static str, namespace: &str, name: &str, value: &str) -> Fires {
    let labels = vec![("namespace", namespace.to_owned()), ("name", name.to_owned())];
    Fires { alert, labels, value: value.to_owned() }
}
