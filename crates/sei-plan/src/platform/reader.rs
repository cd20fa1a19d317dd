//! From YAML text to checked values, each failure with the full key.
//!
//! The text becomes a tree first and values second. A derived decoder would be shorter, but it
//! knows neither the full key of a failure nor the nearest known key.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};

use super::{Problem, Share};
use crate::quantity::Quantity;

/// The most a `ConfigMap` can hold; a larger file is not our file.
const MAX_BYTES: usize = 1024 * 1024;
/// A message stays readable in a terminal and in an event.
const MAX_SHOWN: usize = 80;
const MAX_REASON: usize = 240;

const FOOTPRINT: &[&str] = &["cpuRequest", "memory"];
const BUCKET: &[&str] = &["bucket", "region"];

/// Every key that exists, by section. Maps whose keys the user chooses are no sections.
pub(super) const SCHEMA: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "stateSync",
            "scheduling",
            "pods",
            "storage",
            "resources",
            "snapshot",
            "resultExport",
            "genesis",
            "images",
            "rollout",
        ],
    ),
    ("stateSync", &["syncers"]),
    (
        "scheduling",
        &[
            "nodepoolName",
            "nodepoolArchive",
            "nodepoolValidator",
            "nodepoolSeed",
            "tolerationKey",
            "serviceAccount",
            "nodepoolLabel",
            "nodepoolAffinity",
            "nodeSelector",
            "tolerations",
            "priorityClassName",
        ],
    ),
    ("pods", &["annotations", "imagePullSecrets"]),
    (
        "storage",
        &[
            "classPerf",
            "classDefault",
            "classArchive",
            "sizeDefault",
            "sizeArchive",
            "sizeSeed",
            "onDelete",
        ],
    ),
    ("resources", &["validator", "node", "replayer", "archive", "seed"]),
    ("resources.validator", FOOTPRINT),
    ("resources.node", FOOTPRINT),
    ("resources.replayer", FOOTPRINT),
    ("resources.archive", FOOTPRINT),
    ("resources.seed", FOOTPRINT),
    ("snapshot", BUCKET),
    ("resultExport", &["bucket", "region", "prefix"]),
    ("genesis", BUCKET),
    ("images", &["sidecar", "kubeRBACProxy", "cosmosExporter"]),
    (
        "rollout",
        &[
            "onOperatorChange",
            "onImageChange",
            "maxUnavailable",
            "maxConcurrentPerChain",
            "budgetScope",
            "readyDeadlineSeconds",
            "minReadySeconds",
            "haltAfterFailures",
            "settleSeconds",
            "adoption",
            "podCheck",
            "prePull",
        ],
    ),
];

/// The file as a tree, read by dotted keys.
pub(super) struct Reader {
    root: Map<String, Value>,
}

impl Reader {
    pub(super) fn of(text: &str) -> Result<Self, Problem> {
        if text.len() > MAX_BYTES {
            return Err(Problem::TooLarge { bytes: text.len(), limit: MAX_BYTES });
        }
        // Editors on Windows write a byte order mark; it is not content.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let empty = Problem::Empty { first_key: "scheduling.nodepoolName" };
        if text.trim().is_empty() {
            return Err(empty);
        }
        match serde_saphyr::from_str_with_options(text, options()).map_err(|e| syntax(&e))? {
            Value::Object(root) => Ok(Self { root }),
            Value::Null => Err(empty),
            value => Err(wrong_type("the file", "a mapping", &value)),
        }
    }

    /// Refuses any key that no version of the operator reads, at every level.
    pub(super) fn check_keys(&self) -> Result<(), Problem> {
        for (section, known) in SCHEMA {
            let Some(map) = self.section(section)? else { continue };
            if let Some(key) = map.keys().find(|key| !known.contains(&key.as_str())) {
                return Err(Problem::UnknownKey {
                    key: shown(&join(section, key)),
                    hint: hint(section, known, key),
                });
            }
        }
        Ok(())
    }

    /// Text that may be absent. Blank counts as absent.
    pub(super) fn text(&self, key: &str) -> Result<Option<String>, Problem> {
        match self.value(key)? {
            None => Ok(None),
            Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(value) => Err(wrong_type(key, "text", value)),
        }
    }

    /// Text that is required. None of these values can hold a space or a control character: they
    /// are names of Kubernetes objects, label keys, buckets and images.
    pub(super) fn required(&self, key: &str) -> Result<String, Problem> {
        let text = self.text(key)?.ok_or_else(|| Problem::Required { key: key.to_owned() })?;
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            let rule = "must not contain spaces or control characters".to_owned();
            return Err(Problem::InvalidValue { key: key.to_owned(), value: shown(&text), rule });
        }
        Ok(text)
    }

    /// A quantity above zero, written as text or as a number.
    pub(super) fn quantity(&self, key: &str) -> Result<Option<Quantity>, Problem> {
        let text = match self.value(key)? {
            None => return Ok(None),
            Some(Value::Number(number)) => number.to_string(),
            Some(Value::String(text)) if text.trim().is_empty() => return Ok(None),
            Some(Value::String(text)) => text.clone(),
            Some(value) => return Err(wrong_type(key, "a quantity", value)),
        };
        let quantity = Quantity::parse(&text).map_err(|e| Problem::InvalidQuantity {
            key: key.to_owned(),
            reason: one_line(&e.to_string(), MAX_REASON),
        })?;
        if quantity.is_negative() || quantity.is_zero() {
            let rule = "must be more than zero".to_owned();
            return Err(Problem::InvalidValue { key: key.to_owned(), value: shown(&text), rule });
        }
        Ok(Some(quantity))
    }

    pub(super) fn required_quantity(&self, key: &str) -> Result<Quantity, Problem> {
        self.quantity(key)?.ok_or_else(|| Problem::Required { key: key.to_owned() })
    }

    pub(super) fn whole_number(&self, key: &str, least: u32) -> Result<Option<u32>, Problem> {
        let number = match self.value(key)? {
            None => return Ok(None),
            Some(Value::Number(number)) if !number.is_f64() => number,
            Some(value) => return Err(wrong_type(key, "a whole number", value)),
        };
        // i32 at most: every number here ends up in a Kubernetes field or in arithmetic on times.
        let most = i32::MAX.unsigned_abs();
        let value = number.as_u64().and_then(|n| u32::try_from(n).ok());
        match value.filter(|n| (least..=most).contains(n)) {
            Some(value) => Ok(Some(value)),
            None => Err(Problem::InvalidValue {
                key: key.to_owned(),
                value: number.to_string(),
                rule: format!("must be between {least} and {most}"),
            }),
        }
    }

    /// A number of nodes (`2`) or a part of them (`25%`).
    pub(super) fn share(&self, key: &str) -> Result<Option<Share>, Problem> {
        if !matches!(self.value(key)?, Some(Value::String(_))) {
            return Ok(self.whole_number(key, 1)?.map(Share::Nodes));
        }
        let Some(text) = self.text(key)? else { return Ok(None) };
        let percent = text.strip_suffix('%').and_then(|number| number.parse::<u32>().ok());
        match percent.filter(|percent| (1..=100).contains(percent)) {
            Some(percent) => Ok(Some(Share::Percent(percent))),
            None => Err(Problem::InvalidValue {
                key: key.to_owned(),
                value: shown(&text),
                rule: "must be a number of nodes such as 2, or a part of them such as 25%"
                    .to_owned(),
            }),
        }
    }

    pub(super) fn choice<T: Copy>(
        &self,
        key: &str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, Problem> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let choice = choices.iter().find(|(name, _)| *name == text);
        let names = || choices.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        choice.map(|(_, choice)| Some(*choice)).ok_or_else(|| Problem::InvalidValue {
            key: key.to_owned(),
            value: shown(&text),
            rule: format!("is not one of {}", names()),
        })
    }

    /// A mapping from free names to lists of texts.
    pub(super) fn lists(&self, key: &str) -> Result<BTreeMap<String, Vec<String>>, Problem> {
        let mut lists = BTreeMap::new();
        for (name, value) in self.section(key)?.into_iter().flatten() {
            let full = shown(&join(key, name));
            let list = match value {
                Value::Null => Vec::new(),
                Value::Array(entries) => entries
                    .iter()
                    .map(|entry| match entry {
                        Value::String(text) => Ok(text.clone()),
                        entry => Err(wrong_type(&full, "a list of texts", entry)),
                    })
                    .collect::<Result<_, _>>()?,
                value => return Err(wrong_type(&full, "a list of texts", value)),
            };
            lists.insert(name.clone(), list);
        }
        Ok(lists)
    }

    /// The mapping under a key; an empty key is the file itself.
    pub(super) fn section(&self, key: &str) -> Result<Option<&Map<String, Value>>, Problem> {
        if key.is_empty() {
            return Ok(Some(&self.root));
        }
        match self.value(key)? {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(value) => Err(wrong_type(key, "a mapping", value)),
        }
    }

    /// The value under a dotted key. A key without a value (`seed:`) counts as absent.
    pub(super) fn value(&self, key: &str) -> Result<Option<&Value>, Problem> {
        let (section, last) = key.rsplit_once('.').unwrap_or(("", key));
        let value = self.section(section)?.and_then(|map| map.get(last));
        Ok(value.filter(|value| !value.is_null()))
    }
}

/// Anchors stay usable as people use them; the limits prevent an alias bomb.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 16,
            max_documents: 2,
            max_anchors: 32,
            max_aliases: 128,
            max_nodes: 20_000,
            max_events: 50_000,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 10_000 },
        duplicate_keys: DuplicateKeyPolicy::Error,
        // `on` and `yes` are valid names of pools; only `true` and `false` are booleans.
        strict_booleans: true,
        reject_unsupported_tags: true,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        with_snippet: false,
    }
}

fn syntax(error: &serde_saphyr::Error) -> Problem {
    let line = error.location().map_or(0, |location| location.line());
    match error.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            Problem::DuplicateKey { key: shown(key), line }
        }
        serde_saphyr::Error::MultipleDocuments { .. } => {
            Problem::Syntax { reason: format!("a second document starts at line {line}; keep one") }
        }
        error => Problem::Syntax { reason: one_line(&error.to_string(), MAX_REASON) },
    }
}

pub(super) fn wrong_type(key: &str, expected: &'static str, found: &Value) -> Problem {
    let found = match found {
        Value::Null => "nothing".to_owned(),
        Value::Bool(value) => format!("the switch {value} (put it in quotes if it is a name)"),
        Value::Number(number) if expected == "text" => {
            format!("the number {number} (put it in quotes)")
        }
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the text `{}`", shown(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
    };
    Problem::WrongType { key: key.to_owned(), expected, found }
}

/// The probable key: a similar key nearby, the same name elsewhere, or the list of known keys.
pub(super) fn hint(section: &str, known: &[&str], key: &str) -> String {
    let desired = key.to_lowercase();
    let near = known
        .iter()
        .map(|name| (distance(&name.to_lowercase(), &desired), *name))
        .min()
        .filter(|(distance, name)| *distance <= 1 + name.len() / 4);
    if let Some((_, name)) = near {
        return format!("did you mean {}?", join(section, name));
    }
    let elsewhere = SCHEMA.iter().find_map(|(section, names)| {
        let name = names.iter().find(|name| name.to_lowercase() == desired)?;
        Some(join(section, name))
    });
    match elsewhere {
        Some(key) => format!("did you mean {key}?"),
        None => format!("known here: {}", known.join(", ")),
    }
}

/// Levenshtein distance. Keys are cut first, so a hostile one costs nothing.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().take(MAX_SHOWN).collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, from) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in right.iter().enumerate() {
            let change = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}

pub(super) fn join(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") }
}

pub(super) fn shown(text: &str) -> String {
    one_line(text, MAX_SHOWN)
}

/// Content of the file in a message: escaped, so that it stays one line, and cut.
pub(super) fn one_line(text: &str, most: usize) -> String {
    let mut line = String::new();
    for c in text.chars().take(most) {
        match c {
            '"' | '\'' | '\\' => line.push(c),
            _ => line.extend(c.escape_debug()),
        }
    }
    if text.chars().count() > most {
        line.push_str("...");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Users copy the sample, and read it to find the available keys.
    #[test]
    fn the_sample_has_every_key() {
        let sample = include_str!("../../../../config/samples/install/platform.yaml");
        let reader = Reader::of(sample).unwrap();
        for (section, keys) in SCHEMA {
            let found = reader.section(section).unwrap().unwrap_or_else(|| panic!("no {section}"));
            for key in *keys {
                assert!(found.contains_key(*key), "the sample has no {section}.{key}");
            }
        }
    }
}
