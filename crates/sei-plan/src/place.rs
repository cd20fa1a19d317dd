//! The place of a value in a pod template.
//!
//! JSON does not show that a string is a quantity or that a list is keyed by name; only the path
//! does. The fingerprint, the diff and the adoption rule must agree on it, so it is decided here.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::quantity::Quantity;

/// The last three steps of a path: map keys, or None for an element of a list. Three are enough
/// for every rule, and the paths of other records (`sidecar.resources.limits.cpu`) match as well.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Place<'a> {
    steps: [Option<&'a str>; 3],
}

impl<'a> Place<'a> {
    pub(crate) fn under(self, key: &'a str) -> Self {
        let [_, second, third] = self.steps;
        Self { steps: [second, third, Some(key)] }
    }

    pub(crate) fn element(self) -> Self {
        let [_, second, third] = self.steps;
        Self { steps: [second, third, None] }
    }

    pub(crate) fn key(self) -> Option<&'a str> {
        self.steps[2]
    }

    pub(crate) fn is_env_entry(self) -> bool {
        matches!(self.steps, [_, Some("env"), None])
    }

    pub(crate) fn is_env_value(self) -> bool {
        matches!(self.steps, [Some("env"), None, Some("value")])
    }

    /// The quantity at this place, if the place may hold one and the text is one. Quantities also
    /// arrive as bare JSON numbers.
    pub(crate) fn quantity(self, value: &Value) -> Option<Quantity> {
        let expected = matches!(
            self.steps,
            [Some("resources"), Some("limits" | "requests"), Some(_)]
                | [_, Some("emptyDir"), Some("sizeLimit")]
                | [_, Some("resourceFieldRef"), Some("divisor")]
        );
        if !expected {
            return None;
        }
        match value {
            Value::String(text) => Quantity::parse(text).ok(),
            Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
            _ => None,
        }
    }

    /// The field that identifies the elements of the list at this place.
    fn element_key(self) -> &'static str {
        match self.key() {
            Some("volumeMounts") => "mountPath",
            Some("volumeDevices") => "devicePath",
            Some("tolerations") => "key",
            _ => "name",
        }
    }

    /// The keys of the elements of several versions of the list at this place, or None when an
    /// element has no key, so that only its position identifies it.
    pub(crate) fn keys<const N: usize>(self, lists: [&[Value]; N]) -> Option<[Vec<ElementKey>; N]> {
        let field = self.element_key();
        let mut keys = [const { Vec::new() }; N];
        for (list, keys) in lists.into_iter().zip(&mut keys) {
            let mut seen = BTreeMap::new();
            for element in list {
                let name = element.get(field)?.as_str()?;
                let count = seen.entry(name).or_insert(0);
                *count += 1;
                keys.push(ElementKey { name: name.to_owned(), occurrence: *count });
            }
        }
        Some(keys)
    }
}

/// What identifies an element of a list. The same name may occur twice (an env entry that
/// overrides an earlier one, two tolerations of one key), hence the count.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ElementKey {
    pub(crate) name: String,
    pub(crate) occurrence: usize,
}

impl std::fmt::Display for ElementKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.occurrence {
            1 => f.write_str(&self.name),
            occurrence => write!(f, "{}#{occurrence}", self.name),
        }
    }
}
