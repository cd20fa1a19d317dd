//! A child process that ends with its owner.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// Starts a watcher that kills the whole process group when stdin closes, then replaces itself by the
/// given program. Only the owner holds the other end of the pipe (Rust opens pipes close-on-exec), so
/// it closes when the owner drops it, exits, panics, is interrupted or killed: no signal has to be
/// handled for that.
///
/// The watcher reads from descriptor 3, because a shell gives background jobs an empty stdin. Its
/// `$$` is the component, which has replaced the shell; while the watcher is in the group, no other
/// process can get that number.
const WATCHED: &str =
    r#"exec 3<&0 </dev/null; (read -r _ <&3; kill -9 -$$) & exec 3<&-; exec "$@""#;

/// Removes a folder when stdin closes. Components may still write until they are killed; a removal
/// that fails because of that is repeated.
const REMOVER: &str = r#"read -r _
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    rm -rf "$1" 2>/dev/null && exit; sleep 0.1
done"#;

/// Lines of a log in an error.
const TAIL_LINES: usize = 12;

/// A running program of the control plane.
#[derive(Debug)]
pub(crate) struct Component {
    child: Child,
    log: PathBuf,
}

impl Component {
    /// Starts a program of the folder; its output goes to a log with its name.
    pub(crate) fn start(
        bin_dir: &Path,
        name: &str,
        arguments: &[String],
        folder: &Path,
    ) -> io::Result<Self> {
        let log = log_path(folder, name);
        let output = File::options().create(true).append(true).open(&log)?;
        let child = watched(&bin_dir.join(name), arguments)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        Ok(Self { child, log })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its exit status, if it has ended.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    pub(crate) fn log_tail(&self) -> String {
        tail(&std::fs::read_to_string(&self.log).unwrap_or_default())
    }
}

impl Drop for Component {
    /// Kills the process: a graceful stop of an API server takes a minute and has no benefit here.
    fn drop(&mut self) {
        // It may have ended by itself; other errors cannot be handled here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn watched(program: &Path, arguments: &[String]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", WATCHED, "watched"]).arg(program).args(arguments);
    // A separate group: Ctrl-C in a terminal reaches the owner only, which stops its components in
    // order.
    command.process_group(0);
    command
}

pub(crate) fn log_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.log"))
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let begin = lines.len().saturating_sub(TAIL_LINES);
    lines[begin..].join("\n")
}

/// A folder that is removed when its owner ends.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    remover: Child,
}

impl Folder {
    pub(crate) fn create() -> io::Result<Self> {
        Self::create_with(REMOVER, &[])
    }

    /// The same with a script that removes it when stdin closes. Its arguments are the folder and
    /// these.
    pub(crate) fn create_with(remover: &str, arguments: &[&str]) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("sei-rig-").tempdir()?;
        let mut command = Command::new("sh");
        command.args(["-c", remover, "remover"]).arg(folder.path()).args(arguments);
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let remover = command.spawn()?;
        Ok(Self { path: folder.keep(), remover })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // `wait` closes stdin first, which starts the removal.
        let _ = self.remover.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// The live members of a process group.
    fn group(leader: u32) -> Vec<u32> {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter(|id| is_alive_in(*id, leader)).collect()
    }

    /// The state, the parent and the group follow the name in parentheses.
    fn is_alive_in(id: u32, leader: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        fields.len() > 2 && fields[0] != "Z" && fields[2] == leader.to_string()
    }

    fn start_sleep(folder: &Path) -> Component {
        Component::start(Path::new("/bin"), "sleep", &["1000".to_owned()], folder).unwrap()
    }

    fn wait_until(claim: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !holds() {
            assert!(Instant::now() < deadline, "{claim}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Set for the process that the test below starts and kills: the file to which it writes its
    /// component and folder.
    const OWNER: &str = "SEI_RIG_TEST_OWNER";

    fn own_until_killed(report: &Path) {
        let folder = Folder::create().unwrap();
        let component = start_sleep(folder.path());
        let text = format!("{} {}", component.id(), folder.path().display());
        std::fs::write(report.with_extension("new"), text).unwrap();
        std::fs::rename(report.with_extension("new"), report).unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }

    #[test]
    fn a_killed_owner_leaves_nothing() {
        if let Some(report) = std::env::var_os(OWNER) {
            return own_until_killed(Path::new(&report));
        }
        let here = tempfile::tempdir().unwrap();
        let report = here.path().join("report");
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "component::tests::a_killed_owner_leaves_nothing"])
            .env(OWNER, &report)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the owner writes its report", || report.exists());
        let text = std::fs::read_to_string(&report).unwrap();
        let (id, folder) = text.split_once(' ').unwrap();
        let id: u32 = id.parse().unwrap();
        wait_until("the program and its watcher run", || group(id).len() == 2);

        owner.kill().unwrap();
        owner.wait().unwrap();
        wait_until("both have ended", || group(id).is_empty());
        wait_until("the folder is removed", || !Path::new(folder).exists());
    }

    #[test]
    fn a_dropped_component_leaves_nothing() {
        let folder = Folder::create().unwrap();
        let path = folder.path().to_owned();
        let component = start_sleep(&path);
        let id = component.id();
        wait_until("the program and its watcher run", || group(id).len() == 2);
        drop(component);
        assert!(!Path::new("/proc").join(id.to_string()).exists());
        wait_until("the watcher has ended", || group(id).is_empty());
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn the_tail_of_a_log_is_its_last_lines() {
        let lines: Vec<String> = (1..=20).map(|number| format!("line {number}")).collect();
        assert_eq!(tail(&lines.join("\n\n")), lines[8..].join("\n"));
        assert_eq!(tail(""), "");
    }
}
