//! Values that several readers share.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// An immutable value behind an `Arc`. A clone is a pointer; a change through `DerefMut` copies the
/// value first if anybody else holds it, so a reader never sees a value change.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Shared<T>(Arc<T>);

impl<T> Shared<T> {
    pub fn new(value: T) -> Self {
        Self(Arc::new(value))
    }

    /// Whether both are the same allocation: equal without a comparison.
    pub fn is_same(&self, right: &Self) -> bool {
        Arc::ptr_eq(&self.0, &right.0)
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T> From<Arc<T>> for Shared<T> {
    fn from(value: Arc<T>) -> Self {
        Self(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_copies_a_value_that_is_shared() {
        let first = Shared::new(vec![1]);
        let mut second = first.clone();
        assert!(first.is_same(&second));
        second.push(2);
        assert_eq!((first.as_slice(), second.as_slice()), ([1].as_slice(), [1, 2].as_slice()));
    }
}
