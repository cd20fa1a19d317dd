//! Objects decoded without their managed fields.
//!
//! Managed fields are half of an object, as a deep tree of small maps, and decoding them costs more
//! than all the rest.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use sei_api::names::FIELD_MANAGER;
use serde::de::value::UnitDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, Error, IgnoredAny, IntoDeserializer, MapAccess, Visitor,
};
use serde::{Deserialize, forward_to_deserialize_any};
use serde_json::Value;
use serde_json::value::RawValue;

/// An object without its managed fields, except where they show that an update of ours, and not
/// an apply, owns fields: only those are ever read.
#[derive(Clone, Debug)]
pub struct Lean<K>(pub K);

impl<'de, K: Deserialize<'de>> Deserialize<'de> for Lean<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        K::deserialize(Filter { inner: deserializer, place: Place::Object }).map(Self)
    }
}

impl<K: Resource> Resource for Lean<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn plural(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Object,
    Metadata,
    ManagedFields,
    /// Below here everything is decoded as it is.
    Other,
}

impl Place {
    fn of(self, key: &str) -> Self {
        match (self, key) {
            (Self::Object, "metadata") => Self::Metadata,
            (Self::Metadata, "managedFields") => Self::ManagedFields,
            _ => Self::Other,
        }
    }
}

/// A deserializer, visitor or seed of the value at a place.
struct Filter<T> {
    inner: T,
    place: Place,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Filter<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(Filter { inner: visitor, place: self.place })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_option(Filter { inner: visitor, place: self.place })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Filter<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(formatter)
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<V::Value, M::Error> {
        self.inner.visit_map(Fields { map, place: self.place, next: Place::Other })
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Filter { inner: deserializer, place: self.place })
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }
}

struct Fields<M> {
    map: M,
    /// Where the map is.
    place: Place,
    /// Where the value of its last key is.
    next: Place,
}

#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, M: MapAccess<'de>> MapAccess<'de> for Fields<M> {
    type Error = M::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, M::Error> {
        let Some(Key(key)) = self.map.next_key()? else { return Ok(None) };
        self.next = self.place.of(&key);
        seed.deserialize(key.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, M::Error> {
        match self.next {
            Place::Other => self.map.next_value_seed(seed),
            Place::ManagedFields => {
                let text: Box<RawValue> = self.map.next_value()?;
                if owns_by_update(&text) {
                    let entries: Value = serde_json::from_str(text.get()).map_err(Error::custom)?;
                    return seed.deserialize(entries).map_err(Error::custom);
                }
                seed.deserialize(UnitDeserializer::new())
            }
            place => self.map.next_value_seed(Filter { inner: seed, place }),
        }
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Filter<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Filter { inner: deserializer, place: self.place })
    }
}

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    manager: Option<Cow<'a, str>>,
    #[serde(borrow)]
    operation: Option<Cow<'a, str>>,
    subresource: Option<IgnoredAny>,
}

/// Whether one of the entries is of an update of ours, of the object itself.
fn owns_by_update(entries: &RawValue) -> bool {
    let entries: Vec<Entry> = serde_json::from_str(entries.get()).unwrap_or_default();
    entries.iter().any(|entry| {
        entry.manager.as_deref() == Some(FIELD_MANAGER)
            && entry.operation.as_deref() == Some("Update")
            && entry.subresource.is_none()
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    fn decode(entries: &Value) -> Pod {
        let metadata = json!({ "name": "p", "managedFields": entries, "uid": "u" });
        let text = json!({ "kind": "Pod", "metadata": metadata, "spec": { "containers": [] } });
        let decoded: Lean<Pod> = serde_json::from_str(&text.to_string()).unwrap();
        decoded.0
    }

    #[test]
    fn only_managed_fields_of_our_own_updates_are_kept() {
        let entry = |manager: &str, operation: &str| {
            let fields = json!({ "f:spec": { "f:template": {} } });
            json!({ "manager": manager, "operation": operation, "fieldsV1": fields })
        };
        let applied = entry(FIELD_MANAGER, "Apply");
        let pod = decode(&json!([entry("kubelet", "Update"), applied]));
        assert_eq!(pod.metadata.managed_fields, None);
        assert_eq!(pod.metadata.uid.as_deref(), Some("u"), "what follows is decoded");
        assert!(pod.spec.is_some());
        let mut status = entry(FIELD_MANAGER, "Update");
        status["subresource"] = json!("status");
        assert_eq!(decode(&json!([status])).metadata.managed_fields, None);
        let created = decode(&json!([applied, entry(FIELD_MANAGER, "Update")]));
        let kept = serde_json::to_value(created.metadata.managed_fields).unwrap();
        assert_eq!(kept, json!([applied, entry(FIELD_MANAGER, "Update")]));
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in ["1", "null", r#"{ "metadata": 1 }"#] {
            assert!(serde_json::from_str::<Lean<Pod>>(text).is_err(), "{text}");
        }
        assert!(serde_json::from_str::<Lean<Pod>>(r#"{ "metadata": null }"#).is_ok());
    }
}
