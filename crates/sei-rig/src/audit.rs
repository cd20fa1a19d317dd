//! The audit log of the API server.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Deserialize;

/// One request, logged once: a watch when it starts, any other request when its response is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    pub user: String,
    pub verb: String,
    /// Empty for the core group.
    pub group: String,
    /// Empty for requests without a resource, like discovery.
    pub resource: String,
    pub subresource: Option<String>,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub uri: String,
    pub code: u16,
    /// When the server received the request.
    pub at: Timestamp,
}

/// Reads entries in the order in which they were written, each once.
///
/// The server writes an entry after its response, so a client may read the log too early: wait for
/// the expected entries, with a deadline.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    offset: u64,
    /// The offset is inside of a line.
    is_within_line: bool,
}

impl AuditLog {
    /// Starts with the next entry; a line that is being written is skipped.
    pub(crate) fn from_now(path: PathBuf) -> Self {
        let offset = path.metadata().map_or(0, |file| file.len());
        let is_within_line = byte_before(&path, offset).is_some_and(|last| last != b'\n');
        Self { path, offset, is_within_line }
    }

    /// The entries since the last call. An unfinished line is left for the next call.
    pub fn read_new(&mut self) -> io::Result<Vec<AuditEntry>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let finished = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.offset += finished as u64;
        let rest = bytes.iter().position(|byte| *byte == b'\n').filter(|_| self.is_within_line);
        self.is_within_line &= rest.is_none();
        bytes[rest.unwrap_or(0)..finished]
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| Ok(serde_json::from_slice::<Line>(line)?.into()))
            .collect()
    }
}

fn byte_before(path: &Path, offset: u64) -> Option<u8> {
    let mut file = File::open(path).ok()?;
    file.seek(SeekFrom::Start(offset.checked_sub(1)?)).ok()?;
    let mut byte = [0];
    file.read_exact(&mut byte).ok()?;
    Some(byte[0])
}

/// The fields of an `audit.k8s.io/v1` event that are used here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    user: LineUser,
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    #[serde(default)]
    object_ref: LineObject,
    #[serde(default)]
    response_status: LineStatus,
    request_received_timestamp: Timestamp,
}

#[derive(Deserialize)]
struct LineUser {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LineObject {
    api_group: String,
    resource: String,
    subresource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LineStatus {
    code: u16,
}

impl From<Line> for AuditEntry {
    fn from(line: Line) -> Self {
        let LineObject { api_group, resource, subresource, namespace, name } = line.object_ref;
        Self {
            user: line.user.username,
            verb: line.verb,
            group: api_group,
            resource,
            subresource,
            namespace,
            name,
            uri: line.request_uri,
            code: line.response_status.code,
            at: line.request_received_timestamp,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const STATUS: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","stage":"ResponseComplete","requestURI":"/apis/sei.io/v1alpha1/namespaces/demo/seinodes/a/status","verb":"patch","user":{"username":"sei-operator","groups":["system:authenticated"]},"objectRef":{"resource":"seinodes","namespace":"demo","name":"a","apiGroup":"sei.io","apiVersion":"v1alpha1","subresource":"status"},"responseStatus":{"metadata":{},"code":409},"requestReceivedTimestamp":"2026-01-02T03:04:05.678901Z"}"#;
    const DISCOVERY: &str = r#"{"requestURI":"/apis","verb":"get","user":{"username":"sei-operator"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-02T03:04:06Z"}"#;

    #[test]
    fn each_entry_is_read_once_and_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let mut log = AuditLog::from_now(path.clone());
        assert_eq!(log.read_new().unwrap(), []);

        let mut file = File::create(&path).unwrap();
        let (begin, end) = STATUS.split_at(100);
        write!(file, "{DISCOVERY}\n{begin}").unwrap();
        let mut later = AuditLog::from_now(path.clone());
        assert_eq!(later.read_new().unwrap(), []);
        let entries = log.read_new().unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].resource.as_str(), entries[0].uri.as_str()), ("", "/apis"));

        writeln!(file, "{end}").unwrap();
        let expected = AuditEntry {
            user: "sei-operator".into(),
            verb: "patch".into(),
            group: "sei.io".into(),
            resource: "seinodes".into(),
            subresource: Some("status".into()),
            namespace: Some("demo".into()),
            name: Some("a".into()),
            uri: "/apis/sei.io/v1alpha1/namespaces/demo/seinodes/a/status".into(),
            code: 409,
            at: "2026-01-02T03:04:05.678901Z".parse().unwrap(),
        };
        assert_eq!(log.read_new().unwrap(), [expected]);
        assert_eq!(log.read_new().unwrap(), []);
        assert_eq!(AuditLog::from_now(path).read_new().unwrap(), []);

        assert_eq!(later.read_new().unwrap(), [], "the rest of a line whose start was not read");
        writeln!(file, "{DISCOVERY}").unwrap();
        assert_eq!(later.read_new().unwrap().len(), 1);
    }
}
