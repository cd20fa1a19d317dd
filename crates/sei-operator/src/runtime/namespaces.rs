//! Watches of several namespaces that read like a watch of one.
//!
//! A reader of a watch replaces everything by each list. So a list is complete only when that of
//! every namespace is, and when one namespace has to be listed again, all are.

use std::collections::VecDeque;
use std::fmt::Debug;

use futures::stream::{self, BoxStream, SelectAll};
use futures::{Stream, StreamExt as _};
use k8s_openapi::NamespaceResourceScope;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

/// The events of a kind in these namespaces; in all without any.
pub(crate) fn events<K>(
    client: &Client,
    namespaces: &[String],
    config: &watcher::Config,
) -> BoxStream<'static, watcher::Result<Event<K>>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (client, config) = (client.clone(), config.clone());
    let watch = move |api: Api<K>| watcher(api, config.clone()).boxed();
    match namespaces {
        [] => watch(Api::all(client)),
        [single] => watch(Api::namespaced(client, single)),
        several => {
            let open = move |namespace: &String| watch(Api::namespaced(client.clone(), namespace));
            merged(several.to_vec(), open).boxed()
        }
    }
}

/// The events of several watches as those of one.
fn merged<K: Send + 'static>(
    namespaces: Vec<String>,
    open: impl Fn(&String) -> Events<K>,
) -> impl Stream<Item = watcher::Result<Event<K>>> {
    let opened = move || namespaces.iter().map(&open).collect();
    let merged = Merged { unlisted: opened(), listed: SelectAll::new(), is_partly_listed: false };
    stream::unfold((merged, opened), |(mut merged, opened)| async move {
        let event = merged.next(&opened).await?;
        Some((event, (merged, opened)))
    })
}

type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

struct Merged<K> {
    /// In this order; only the first is read.
    unlisted: VecDeque<Events<K>>,
    listed: SelectAll<Events<K>>,
    /// Objects of the first one were shown, and its list is not complete.
    is_partly_listed: bool,
}

impl<K> Merged<K> {
    async fn next(
        &mut self,
        opened: impl Fn() -> VecDeque<Events<K>>,
    ) -> Option<watcher::Result<Event<K>>> {
        loop {
            let Some(first) = self.unlisted.front_mut() else {
                match self.listed.next().await? {
                    Ok(Event::Init) => self.restart(opened()),
                    event => return Some(event),
                }
                continue;
            };
            match first.next().await? {
                Ok(Event::Init) if self.listed.is_empty() => {
                    self.is_partly_listed = false;
                    return Some(Ok(Event::Init));
                }
                // Objects that were shown may have been deleted since.
                Ok(Event::Init) if self.is_partly_listed => self.restart(opened()),
                Ok(Event::Init) => {}
                Ok(Event::InitDone) => {
                    self.is_partly_listed = false;
                    self.listed.extend(self.unlisted.pop_front());
                    if self.unlisted.is_empty() {
                        return Some(Ok(Event::InitDone));
                    }
                }
                event => {
                    self.is_partly_listed |= matches!(event, Ok(Event::InitApply(_)));
                    return Some(event);
                }
            }
        }
    }

    fn restart(&mut self, opened: VecDeque<Events<K>>) {
        *self = Self { unlisted: opened, listed: SelectAll::new(), is_partly_listed: false };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// The events of two watches, each of which is opened as often as it has a script: `i` begins a
    /// list, `d` completes it, `x` fails, `+` and `-` change an object, and other letters are listed.
    async fn check(scripts: &[(&str, &str)], expected: &str) {
        let left: Mutex<Vec<(String, String)>> =
            Mutex::new(scripts.iter().map(|(at, text)| ((*at).into(), (*text).into())).collect());
        let open = |namespace: &String| -> Events<char> {
            let mut left = left.lock().unwrap();
            let at = left.iter().position(|(of, _)| of == namespace).expect("is opened once more");
            let script = left.remove(at).1;
            let events = script.chars().map(|letter| match letter {
                'i' => Ok(Event::Init),
                'd' => Ok(Event::InitDone),
                'x' => Err(watcher::Error::NoResourceVersion),
                '+' => Ok(Event::Apply('+')),
                '-' => Ok(Event::Delete('-')),
                object => Ok(Event::InitApply(object)),
            });
            stream::iter(events.collect::<Vec<_>>()).boxed()
        };
        let text = |event: watcher::Result<Event<char>>| match event {
            Ok(Event::Init) => 'i',
            Ok(Event::InitDone) => 'd',
            Ok(Event::Apply(object) | Event::Delete(object) | Event::InitApply(object)) => object,
            Err(_) => 'x',
        };
        let events = merged(vec!["a".to_owned(), "b".to_owned()], open);
        let shown: String = events.map(text).collect().await;
        assert_eq!(shown, expected, "{scripts:?}");
    }

    #[tokio::test]
    async fn the_lists_of_all_namespaces_are_one() {
        check(&[("a", "iAd+"), ("b", "iBCd-")], "iABCd+-").await;
        check(&[("a", "id"), ("b", "id")], "id").await;
    }

    #[tokio::test]
    async fn a_list_that_fails_is_shown_from_its_begin() {
        check(&[("a", "iAxiAd"), ("b", "id")], "iAxiAd").await;
        check(&[("a", "iAd"), ("b", "ixixiBd")], "iAxxBd").await;
        let again = [("a", "iAd"), ("b", "iBxi"), ("a", "id"), ("b", "iCd")];
        check(&again, "iABxiCd").await;
    }

    #[tokio::test]
    async fn one_namespace_that_is_listed_again_lists_all() {
        let again = [("a", "iAd"), ("b", "iBdxi"), ("a", "iDd"), ("b", "id")];
        check(&again, "iABdxiDd").await;
    }
}
