//! What becomes of the worker.

use std::fs;

use super::check;
use super::sshd::{Sshd, TOKEN, is_alive, until};

#[tokio::test]
async fn a_worker_is_started_and_outlives_the_visit() {
    let sshd = Sshd::start("");
    let heard = sshd.path("heard");
    let worker =
        format!("printf %s \"$REMUDA_TOKEN\" >{0}.new; mv {0}.new {0}; exec sleep 1000", heard.display());
    sshd.visit(&sshd.settings(&worker)).await.unwrap();
    sshd.is_left().await;

    let process = sshd.worker();
    assert!(is_alive(process));
    until("the worker wrote down what it heard", || heard.exists()).await;
    assert_eq!(fs::read_to_string(&heard).unwrap(), TOKEN);
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let session = stat.rsplit_once(") ").unwrap().1.split(' ').nth(3).unwrap();
    assert_eq!(session, process.to_string(), "it has a session of its own");
    let log = sshd.path("remuda/worker.log");
    let streams = [0, 1, 2].map(|fd| fs::read_link(format!("/proc/{process}/fd/{fd}")).unwrap());
    assert_eq!(
        streams.each_ref().map(|path| path.as_path()),
        ["/dev/null".as_ref(), log.as_path(), log.as_path()]
    );
    let open = fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    assert_eq!(open, 3, "nothing of the visit is left open");
}
