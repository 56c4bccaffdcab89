//! What the demo plays on: a folder, a plane in this process, and workers as processes of their own. All of it is
//! gone afterwards, whichever way the demo ends.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::super::Client;
use super::drawing::{self, DrawingModel};
use remuda_config::ResolvedConfig;
use remuda_server::serve::Serving;

const NAMES: [&str; 3] = ["bay", "dun", "roan"];

/// What a worker runs for each attempt.
const RENDER: &str = r#"workflow=$(cat)
scene=$(printf %s "$workflow" | sed 's/.*"scene":"\([^"]*\)".*/\1/')
steps=$(printf %s "$workflow" | sed 's/.*"steps":\([0-9]*\).*/\1/')
case $scene in *dragon*) echo "there is no model for dragons" >&2; exit 3 ;; esac
step=0
while [ "$step" -lt "$steps" ]; do
  sleep 0.25
  step=$((step + 1))
  echo "progress $(awk "BEGIN { print $step / $steps }") step $step of $steps" >&2
done
echo "{\"picture\":\"$scene.png\",\"steps\":$steps,\"attempt\":$REMUDA_ATTEMPT}"
"#;

/// Starts a worker, says its process's number, and ends it when our end of standard input is gone: even if this
/// process is killed, its workers are not left over. They are not waited for before, so the number stays theirs.
const LIFELINE: &str = r#""$@" </dev/null & echo $!; exec >&-; read -r _; kill -9 $!; wait"#;

/// How long a worker may take to say goodbye.
const GOODBYE_MAX: Duration = Duration::from_secs(3);
const JOIN_MAX: Duration = Duration::from_secs(15);

pub(super) struct DemoProcesses {
    pub(super) url: String,
    painter: Option<DrawingModel>,
    // Dropped in this order: workers before their plane, processes before the folder they write to.
    workers: Vec<Worker>,
    serving: Option<Serving>,
    folder: Folder,
}

pub(super) struct Worker {
    pub(super) name: &'static str,
    pub(super) process: i32,
    /// The shell that holds the worker; its standard input is the worker's lifeline.
    shell: Child,
    /// What the worker prints; it ends when the worker does.
    output: Lines<BufReader<ChildStdout>>,
}

impl DemoProcesses {
    pub(super) async fn set(painter: Option<DrawingModel>) -> anyhow::Result<DemoProcesses> {
        let folder = Folder::create()?;
        std::fs::write(folder.0.join("render.sh"), RENDER).context("cannot write the demo's renderer")?;
        let mut resolved = ResolvedConfig::defaults(folder.0.clone());
        resolved.serve.listen.set_port(0);
        hurry(&mut resolved);
        let serving = Serving::start(&resolved).await?;
        Ok(DemoProcesses {
            url: format!("http://{}", serving.address),
            painter,
            workers: Vec::new(),
            serving: Some(serving),
            folder,
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder.0
    }

    pub(super) fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter()
    }

    pub(super) fn can_draw(&self) -> bool {
        self.painter.is_some()
    }

    pub(super) async fn start_workers(&mut self) -> anyhow::Result<()> {
        let renders = NAMES.map(|name| (name, ["--exec".to_owned(), "sh render.sh".to_owned()]));
        let draws = self.painter.as_ref().map(|painter| {
            (drawing::WORKER, ["--model".to_owned(), format!("draw={}", painter.model.display())])
        });
        for (name, does) in renders.into_iter().chain(draws) {
            let worker = Worker::start(name, &self.url, self.folder(), &does).await;
            self.workers.push(worker.with_context(|| format!("cannot start worker {name}"))?);
        }
        Ok(())
    }

    pub(super) async fn wait_for_workers(&self, client: &Client) -> anyhow::Result<()> {
        let all_joined = async {
            loop {
                let answer = client.get("/remuda/v1/workers").await?;
                if answer["workers"].as_array().is_some_and(|workers| workers.len() == self.workers.len()) {
                    return anyhow::Ok(());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        match tokio::time::timeout(JOIN_MAX, all_joined).await {
            Ok(joined) => joined,
            Err(_) => {
                bail!("the workers did not join within {} s: {}", JOIN_MAX.as_secs(), self.last_words())
            }
        }
    }

    /// What the workers wrote before they failed to join.
    fn last_words(&self) -> String {
        let log = |worker: &Worker| self.folder().join(format!("{}.log", worker.name));
        let logs = self.workers.iter().filter_map(|worker| std::fs::read_to_string(log(worker)).ok());
        logs.filter_map(|log| log.lines().last().map(str::to_owned)).collect::<Vec<_>>().join("; ")
    }

    /// `kill -9`, as the kernel or a power cut would do it.
    pub(super) fn kill(&self, name: &str) -> anyhow::Result<i32> {
        let worker = self.workers.iter().find(|worker| worker.name == name);
        let worker = worker.with_context(|| format!("there is no worker {name}"))?;
        worker.signal(Signal::KILL).with_context(|| format!("cannot kill worker {name}"))?;
        Ok(worker.process)
    }

    /// Workers say goodbye, the plane stops, the folder is removed.
    pub(super) async fn clear(mut self) {
        for worker in &self.workers {
            worker.signal(Signal::TERM).ok();
        }
        for mut worker in self.workers.drain(..) {
            worker.end().await;
        }
        if let Some(serving) = self.serving.take() {
            drop(serving.stop().await);
        }
    }
}

impl Worker {
    async fn start(name: &'static str, url: &str, folder: &Path, does: &[String]) -> anyhow::Result<Worker> {
        let program = std::env::current_exe().context("this program does not know where it is")?;
        let log = std::fs::File::create(folder.join(format!("{name}.log")))?;
        let mut shell = Command::new("sh")
            .args(["-c", LIFELINE, "sh"])
            .arg(program)
            .args(["worker", "--name", name, "--machine", name, "--url", url])
            .args(does)
            // A settings file or a setting of the user's is not meant for the demo.
            .current_dir(folder)
            .arg("--data")
            .arg(folder)
            .env_remove("REMUDA_CONFIG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // Ctrl-C is for us: we end the workers in good order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let stdout = shell.stdout.take().context("its output cannot be read")?;
        let mut output = BufReader::new(stdout).lines();
        loop {
            let line = output.next_line().await?.context("it ended at once")?;
            // The worker's own first line may come before the shell's.
            if let Ok(process) = line.trim().parse() {
                return Ok(Worker { name, process, shell, output });
            }
        }
    }

    fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        Pid::from_raw(self.process).map_or(Ok(()), |process| kill_process(process, signal))
    }

    /// Waits for its goodbye, but not for ever; then lets go of its lifeline.
    async fn end(&mut self) {
        let goodbye = async { while let Ok(Some(_)) = self.output.next_line().await {} };
        drop(tokio::time::timeout(GOODBYE_MAX, goodbye).await);
        drop(self.shell.stdin.take());
        drop(tokio::time::timeout(GOODBYE_MAX, self.shell.wait()).await);
    }
}

/// If all else fails: the shell and the worker are one group.
impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(group) = self.shell.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) {
            kill_process_group(group, Signal::KILL).ok();
        }
    }
}

/// Everything as by default, only sooner: the demo shall be over before the coffee is cold.
fn hurry(resolved: &mut ResolvedConfig) {
    let settings = &mut resolved.settings;
    settings.beat_busy = Duration::from_millis(500);
    settings.suspect_after = Duration::from_millis(1200);
    settings.lease = Duration::from_millis(2500);
    settings.order_grace = Duration::from_secs(1);
    settings.plane_stall_max = Duration::from_millis(1500);
    settings.retry_base = Duration::from_millis(300);
    // On a machine so busy that workers seem lost that are not, a job is not to be taken for poison.
    settings.poison_after = settings.infra_failures_max;
}

struct Folder(PathBuf);

impl Folder {
    fn create() -> anyhow::Result<Folder> {
        let name = format!("remuda-demo-{}", uuid::Uuid::new_v4().simple());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).with_context(|| format!("cannot create the folder {}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("remuda: the folder {} could not be removed: {error}", self.0.display());
        }
    }
}
