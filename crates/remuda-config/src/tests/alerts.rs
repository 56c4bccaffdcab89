//! `[[alert]]`.

use remuda_core::alert::{AlertChannel, AlertCondition};

use super::*;

#[test]
fn alert_names_its_condition_and_its_channels() {
    let text = "[[alert]]\nname = 'waiting'\nwhen = 'oldest_waiting'\ntime_limit = '15m'\nfor = '30s'\n\
                slack = 'https://hooks.example.org/T0/secret'\ncommand = 'mail -s remuda ops@example.org'\n";
    let resolved = fixture().file(text).load().unwrap();
    let [alert] = &resolved.alerts[..] else { panic!("{:?}", resolved.alerts) };
    assert_eq!(
        (alert.rule.when, alert.rule.time_limit),
        (AlertCondition::OldestWaiting, Some(Duration::from_secs(900)))
    );
    assert_eq!(alert.rule.channels, [AlertChannel::Slack, AlertChannel::Command, AlertChannel::Log]);
    assert_eq!(alert.address(AlertChannel::Slack).unwrap().reveal(), "https://hooks.example.org/T0/secret");
    for is_json in [false, true] {
        let shown = show(&resolved, is_json);
        assert!(shown.contains("alert.waiting.slack") && !shown.contains("T0/secret"), "{shown}");
    }
}

#[test]
fn address_is_read_from_its_file() {
    let fixture = fixture();
    let path = fixture.path("hook");
    std::fs::write(&path, "https://hooks.example.org/x\n").unwrap();
    let fixture = fixture.file("[[alert]]\nname = 'a'\nwhen = 'brake'\nlog = false\nwebhook_file = 'hook'\n");
    let alert = fixture.load().unwrap().alerts.remove(0);
    assert_eq!(alert.rule.channels, [AlertChannel::Webhook]);
    assert_eq!(alert.address(AlertChannel::Webhook).unwrap().reveal(), "https://hooks.example.org/x");
    std::fs::remove_file(&path).unwrap();
    assert!(format!("{:#}", alert.address(AlertChannel::Webhook).unwrap_err()).contains("cannot read"));
}

#[test]
fn alert_is_checked() {
    for (text, expected) in [
        ("when = 'brake'", "has no `name`"),
        ("name = 'a'", "has no `when`"),
        ("name = 'a'\nwhen = 'brakes'", "`worker_unreliable` or"),
        ("name = 'a'\nwhen = 'brake'\ntime_limit = '1m'", "`brake` has no `time_limit`"),
        ("name = 'a'\nwhen = 'store_slow'\ndollar_limit = 3", "`store_slow` has no `dollar_limit`"),
        ("name = 'a'\nwhen = 'spend_daily'", "needs a `dollar_limit`"),
        ("name = 'a'\nwhen = 'brake'\nlog = false", "goes nowhere"),
        ("name = 'a'\nwhen = 'brake'\nslak = 'x'", "did you mean `slack`?"),
        ("name = 'a'\nwhen = 'brake'\nslack = 'https://a'\nslack_file = 'b'", "keep one"),
        ("name = 'a'\nwhen = 'brake'\n[[alert]]\nname = 'a'\nwhen = 'brake'", "has the name of another one"),
    ] {
        let error = fixture().file(&format!("[[alert]]\n{text}\n")).load().unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// Faults: X10.
#[test]
fn wrong_address_is_not_repeated_in_the_error() {
    let text = "[[alert]]\nname = 'a'\nwhen = 'brake'\nslack = 'hooks.example.org/canary-4711'\n";
    let error = fixture().file(text).load().unwrap_err().to_string();
    assert!(error.contains("`slack`") && !error.contains("canary-4711"), "{error}");
}
