//! Objects as a watch delivers them: shared, without their managed fields, and decoded or not.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::error_boundary::InvalidObject;
use sei_exec::lean::Lean;
use sei_plan::shared::Shared;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// An object that may not decode: one bad object must not end the watch of all others.
///
/// The decoded object is shared, so that a reconcile takes it out of the store without a copy. Its
/// managed fields, often half of its size, are dropped: no controller reads those of its own kind.
#[derive(Clone, Debug)]
pub struct Guarded<K>(pub Result<Shared<K>, InvalidObject>);

impl<K> Guarded<K> {
    /// The object, if it could be decoded.
    pub fn decoded(&self) -> Option<&Shared<K>> {
        self.0.as_ref().ok()
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    /// Takes the object as text and decodes it from there, so that an error does not end the stream.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self(match serde_json::from_str::<Lean<K>>(text.get()) {
            Ok(object) => Ok(Shared::new(object.0)),
            Err(error) => {
                let named: Named = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
                Err(InvalidObject { error: error.to_string(), metadata: named.metadata })
            }
        }))
    }
}

/// What is decoded of an object that does not decode.
#[derive(Deserialize)]
struct Named {
    metadata: ObjectMeta,
}

impl<K: Resource + Clone> Resource for Guarded<K> {
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
        match &self.0 {
            Ok(object) => object.meta(),
            Err(invalid) => &invalid.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(invalid) => &mut invalid.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    #[test]
    fn managed_fields_are_dropped_and_a_bad_object_keeps_its_name() {
        let decode = |spec| -> Guarded<Pod> {
            let fields = json!([{ "manager": "m", "fieldsV1": { "f:spec": {} } }]);
            serde_json::from_value(json!({
                "metadata": { "name": "p", "managedFields": fields }, "spec": spec,
            }))
            .unwrap()
        };
        let good = decode(json!({ "containers": [] }));
        assert_eq!(good.decoded().map(|pod| &pod.metadata.managed_fields), Some(&None));
        let bad = decode(json!({ "containers": "none" }));
        assert!(bad.decoded().is_none());
        assert_eq!(bad.meta().name.as_deref(), Some("p"));
    }
}
