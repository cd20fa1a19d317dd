//! The platform's configuration file, which is read again while the operator runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sei_plan::fingerprint::short_digest;
use sei_plan::platform::Platform;
use sei_plan::snapshot::RegisteredWitnesses;

/// How often the content of the file is compared. A mounted `ConfigMap` is a link that is replaced, so
/// an event of the file itself would be missed.
const INTERVAL: Duration = Duration::from_secs(5);

/// The platform in force: that of the last valid content of the file.
pub(crate) struct PlatformFile {
    path: Option<PathBuf>,
    state: Mutex<State>,
}

struct State {
    platform: Arc<Platform>,
    /// Of the content in force; empty if that is not known.
    digest: String,
    /// Why the present content is not in force.
    refused: Option<String>,
}

/// What a reading of the file has changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Loaded,
    /// The content in force is there again.
    Restored,
    Refused(String),
}

impl PlatformFile {
    /// The platform is that of the file at the start.
    pub(crate) fn new(path: Option<PathBuf>, platform: Arc<Platform>) -> Self {
        let text = path.as_deref().and_then(|path| std::fs::read_to_string(path).ok());
        // A file that has changed since is loaded by the first reading.
        let is_of = |text: &String| {
            Platform::parse(text, "").is_ok_and(|read| *platform == like(read, &platform))
        };
        let digest = text.filter(is_of).map(|text| short_digest(&text)).unwrap_or_default();
        Self { path, state: Mutex::new(State { platform, digest, refused: None }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The platform in force.
    pub(crate) fn platform(&self) -> Arc<Platform> {
        self.state().platform.clone()
    }

    /// The first 16 digits of the SHA-256 of the content in force, and whether another content was
    /// refused since.
    pub(crate) fn in_force(&self) -> (String, bool) {
        let state = self.state();
        (state.digest.clone(), state.refused.is_some())
    }

    pub(crate) fn witnesses(&self, chain: &str) -> RegisteredWitnesses {
        RegisteredWitnesses::Known(self.platform().witnesses(chain))
    }

    /// Reads the file. Content that is not valid leaves the platform as it is.
    pub(crate) fn read(&self) -> Option<Change> {
        let path = self.path.as_ref()?;
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"));
        let digest = text.as_ref().map(|text| short_digest(text)).unwrap_or_default();
        let mut state = self.state();
        if text.is_ok() && digest == state.digest {
            return state.refused.take().map(|_| Change::Restored);
        }
        let parsed =
            text.and_then(|text| Platform::parse(&text, &shown).map_err(|error| error.to_string()));
        match parsed {
            Ok(platform) => {
                let platform = Arc::new(like(platform, &state.platform));
                *state = State { platform, digest, refused: None };
                Some(Change::Loaded)
            }
            Err(why) if state.refused.as_ref() == Some(&why) => None,
            Err(why) => {
                state.refused = Some(why.clone());
                Some(Change::Refused(why))
            }
        }
    }

    /// Reads the file again and again, and reports each change.
    pub(crate) async fn watch(&self, mut changed: impl FnMut(Change)) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            if let Some(change) = self.read() {
                changed(change);
            }
        }
    }
}

/// The platform of a file, with what is no key of it.
fn like(platform: Platform, present: &Platform) -> Platform {
    Platform { sidecar_audience: present.sidecar_audience, ..platform }
}

/// Reads the platform configuration; the error is one line that names file, key and reason.
pub fn read_platform(path: &Path) -> Result<Platform, String> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"))?;
    Platform::parse(&text, &shown).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const TEXT: &str = include_str!("../../../../config/samples/install/platform.yaml");

    /// A folder as a kubelet mounts a `ConfigMap`: the file is a link through another link.
    struct Mount(PathBuf);

    impl Mount {
        fn new() -> Self {
            let folder =
                std::env::temp_dir().join(format!("sei-platform-{}", uuid::Uuid::new_v4()));
            std::fs::create_dir(&folder).unwrap();
            symlink("..data/config.yaml", folder.join("config.yaml")).unwrap();
            Self(folder)
        }

        fn path(&self) -> PathBuf {
            self.0.join("config.yaml")
        }

        /// Replaces the content by another folder.
        fn write(&self, text: &str) {
            let version = uuid::Uuid::new_v4().to_string();
            std::fs::create_dir(self.0.join(&version)).unwrap();
            std::fs::write(self.0.join(&version).join("config.yaml"), text).unwrap();
            symlink(&version, self.0.join("..tmp")).unwrap();
            std::fs::rename(self.0.join("..tmp"), self.0.join("..data")).unwrap();
        }
    }

    impl Drop for Mount {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_valid_file_takes_effect_and_an_invalid_one_is_refused() {
        let mount = Mount::new();
        mount.write(TEXT);
        let mut platform = read_platform(&mount.path()).unwrap();
        platform.sidecar_audience = false;
        let file = PlatformFile::new(Some(mount.path()), Arc::new(platform));
        let first = file.in_force();
        assert_eq!((first.0.len(), first.1), (16, false));
        assert_eq!(file.read(), None, "nothing has changed");

        let proxy = "kubeRBACProxy: ";
        let (head, tail) = TEXT.split_once(proxy).unwrap();
        let (_, tail) = tail.split_once('\n').unwrap();
        let changed = format!("{head}{proxy}registry.example.org/proxy:new\n{tail}");
        mount.write(&changed);
        assert_eq!(file.read(), Some(Change::Loaded));
        assert_eq!(file.platform().images.kube_rbac_proxy, "registry.example.org/proxy:new");
        assert!(!file.platform().sidecar_audience, "it is no key of the file");
        let second = file.in_force();
        assert_ne!(first.0, second.0);

        mount.write(&format!("{changed}\nrollouts: {{}}\n"));
        let Some(Change::Refused(why)) = file.read() else { panic!("it is refused") };
        assert!(why.contains("rollouts"), "{why}");
        assert_eq!(file.read(), None, "it is reported once");
        assert_eq!(file.platform().images.kube_rbac_proxy, "registry.example.org/proxy:new");
        assert_eq!(file.in_force(), (second.0.clone(), true));

        mount.write(&changed);
        assert_eq!(file.read(), Some(Change::Restored));
        assert_eq!(file.in_force(), (second.0, false));
        std::fs::remove_file(mount.0.join("..data")).unwrap();
        assert!(matches!(file.read(), Some(Change::Refused(_))), "no file is no configuration");
    }

    #[test]
    fn a_file_that_changed_before_the_first_reading_is_loaded() {
        let mount = Mount::new();
        mount.write(TEXT);
        let mut platform = read_platform(&mount.path()).unwrap();
        platform.images.kube_rbac_proxy = "another".to_owned();
        let file = PlatformFile::new(Some(mount.path()), Arc::new(platform));
        assert_eq!(file.read(), Some(Change::Loaded));
    }
}
