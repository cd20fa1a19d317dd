//! The platform's configuration file, as far as it is read again while the operator runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sei_plan::platform::Platform;
use sei_plan::snapshot::RegisteredWitnesses;

/// How long a reading of the file counts.
const READING_AGE_MAX: Duration = Duration::from_secs(5);

/// The state-sync witnesses are read again while the operator runs. The rest of the file is not: a
/// change of it would roll whole fleets.
pub(crate) struct PlatformFile {
    path: Option<PathBuf>,
    first: Arc<Platform>,
    reading: Mutex<Option<Reading>>,
}

/// The file as it was read at some time, or why it could not be.
type Reading = (Instant, Result<Arc<Platform>, String>);

impl PlatformFile {
    pub(crate) fn new(path: Option<PathBuf>, platform: Arc<Platform>) -> Self {
        Self { path, first: platform, reading: Mutex::default() }
    }

    pub(crate) fn witnesses(&self, chain: &str) -> RegisteredWitnesses {
        match self.current() {
            Ok(platform) => RegisteredWitnesses::Known(platform.witnesses(chain)),
            Err(text) => RegisteredWitnesses::Unreadable(text),
        }
    }

    fn current(&self) -> Result<Arc<Platform>, String> {
        let Some(path) = &self.path else { return Ok(self.first.clone()) };
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, platform)) = reading.as_ref()
            && at.elapsed() < READING_AGE_MAX
        {
            return platform.clone();
        }
        let fresh = read_platform(path).map(Arc::new);
        *reading = Some((Instant::now(), fresh.clone()));
        fresh
    }
}

/// Reads the platform configuration; the error is one line that names file, key and reason.
pub fn read_platform(path: &Path) -> Result<Platform, String> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"))?;
    Platform::parse(&text, &shown).map_err(|error| error.to_string())
}
