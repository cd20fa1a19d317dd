//! Objects that are kept for long and read seldom.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// An object, kept as JSON text: as a tree of structs and maps it takes ten times the memory.
#[derive(Debug)]
pub struct Packed<T> {
    text: Box<str>,
    object: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Packed<T> {
    /// A copy of the object.
    ///
    /// # Panics
    ///
    /// Never: the text is a serialized `T`.
    pub fn unpack(&self) -> T {
        serde_json::from_str(&self.text).expect("an object that was serialized can be decoded")
    }
}

#[cfg(test)]
impl<T: DeserializeOwned + Serialize> Packed<T> {
    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut T)) {
        let mut object = self.unpack();
        change(&mut object);
        *self = object.into();
    }
}

impl<T> Packed<T> {
    /// The object as JSON.
    ///
    /// # Panics
    ///
    /// Never: the text is serialized JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).expect("serialized JSON can be parsed")
    }
}

impl<T> Packed<T> {
    /// What a smaller type reads of the object; its default if the object has no such part.
    pub fn part<'a, P: Deserialize<'a> + Default>(&'a self) -> P {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Packs something that serializes like a `T`.
    pub(crate) fn like(object: &impl Serialize) -> Self {
        let text = serde_json::to_string(object).expect("an object of the API has text keys only");
        Self { text: text.into(), object: PhantomData }
    }
}

impl<T: Serialize> From<T> for Packed<T> {
    fn from(object: T) -> Self {
        Self::like(&object)
    }
}

impl From<Box<RawValue>> for Packed<Value> {
    /// Keeps the text as it was received.
    fn from(text: Box<RawValue>) -> Self {
        Self { text: text.into(), object: PhantomData }
    }
}

impl<T: Serialize + Default> Default for Packed<T> {
    fn default() -> Self {
        T::default().into()
    }
}

impl<T> Clone for Packed<T> {
    fn clone(&self) -> Self {
        Self { text: self.text.clone(), object: PhantomData }
    }
}

impl<T> PartialEq for Packed<T> {
    fn eq(&self, second: &Self) -> bool {
        self.text == second.text
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_unpacked_as_it_was_packed() {
        let json = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "n" }, "spec": { "ports": [{ "port": 1 }] },
        });
        let service: Service = serde_json::from_value(json.clone()).unwrap();
        let packed = Packed::from(service.clone());
        assert_eq!((packed.unpack(), packed.json()), (service, json));
        assert_ne!(packed, Packed::default());
    }
}
