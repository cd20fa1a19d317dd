//! Lists and maps of the configuration that are rendered into pods as they are written.

use std::collections::BTreeMap;

use sei_api::pod::Toleration;
use serde_json::Value;

use super::Problem;
use super::reader::{Reader, hint, join, one_line, shown, wrong_type};
use crate::inputs::pod::{self, Mistake};

const TOLERATION: &[&str] = &["key", "operator", "value", "effect", "tolerationSeconds"];
/// More would be a mistake, and every pod would carry them.
const ENTRIES_MAX: usize = 32;

impl Reader {
    /// Text that may be absent, and that a check accepts.
    pub(super) fn checked(
        &self,
        key: &str,
        check: fn(&str) -> Option<Mistake>,
    ) -> Result<Option<String>, Problem> {
        let text = self.text(key)?;
        match text.as_deref().and_then(check) {
            Some(mistake) => Err(refused(key, mistake)),
            None => Ok(text),
        }
    }

    pub(super) fn node_selector(&self, key: &str) -> Result<BTreeMap<String, String>, Problem> {
        let labels = self.texts(key)?;
        let mistake = labels.iter().find_map(|(name, value)| pod::selector_error(name, value));
        mistake.map_or(Ok(labels), |mistake| Err(refused(key, mistake)))
    }

    pub(super) fn annotations(&self, key: &str) -> Result<BTreeMap<String, String>, Problem> {
        let annotations = self.texts(key)?;
        let mistake = pod::annotation_error(&annotations);
        mistake.map_or(Ok(annotations), |mistake| Err(refused(key, mistake)))
    }

    /// A list of names of objects.
    pub(super) fn names(&self, key: &str) -> Result<Vec<String>, Problem> {
        let name = |entry: &Value, at: &str| match entry {
            Value::String(name) => match pod::name_error(name) {
                Some(mistake) => Err(refused(at, mistake)),
                None => Ok(name.clone()),
            },
            entry => Err(wrong_type(at, "text", entry)),
        };
        self.entries(key, name)
    }

    pub(super) fn tolerations(&self, key: &str) -> Result<Vec<Toleration>, Problem> {
        self.entries(key, |entry, at| {
            let Value::Object(map) = entry else {
                return Err(wrong_type(at, "a mapping", entry));
            };
            if let Some(unknown) = map.keys().find(|name| !TOLERATION.contains(&name.as_str())) {
                let key = shown(&join(at, unknown));
                return Err(Problem::UnknownKey { key, hint: hint(at, TOLERATION, unknown) });
            }
            let toleration = serde_json::from_value::<Toleration>(entry.clone()).map_err(|e| {
                let reason = one_line(&e.to_string(), 240);
                Problem::InvalidToleration { key: at.to_owned(), reason }
            })?;
            match pod::toleration_error(&toleration) {
                Some(mistake) => Err(refused(at, mistake)),
                None => Ok(toleration),
            }
        })
    }

    /// Each entry of a list, with its own key.
    fn entries<T>(
        &self,
        key: &str,
        read: impl Fn(&Value, &str) -> Result<T, Problem>,
    ) -> Result<Vec<T>, Problem> {
        match self.value(key)? {
            None => Ok(Vec::new()),
            Some(Value::Array(all)) if all.len() > ENTRIES_MAX => {
                let rule = format!("is more than the {ENTRIES_MAX} entries that are accepted");
                let value = all.len().to_string();
                Err(Problem::InvalidValue { key: key.to_owned(), value, rule })
            }
            Some(Value::Array(all)) => {
                let all = all.iter().enumerate();
                all.map(|(at, entry)| read(entry, &format!("{key}[{at}]"))).collect()
            }
            Some(value) => Err(wrong_type(key, "a list", value)),
        }
    }

    /// A mapping from free names to texts.
    fn texts(&self, key: &str) -> Result<BTreeMap<String, String>, Problem> {
        let all = self.section(key)?.into_iter().flatten();
        all.map(|(name, value)| match value {
            Value::String(text) => Ok((name.clone(), text.clone())),
            value => Err(wrong_type(&shown(&join(key, name)), "text", value)),
        })
        .collect()
    }
}

fn refused(key: &str, (value, rule): Mistake) -> Problem {
    Problem::InvalidValue { key: key.to_owned(), value: shown(&value), rule: rule.to_owned() }
}
