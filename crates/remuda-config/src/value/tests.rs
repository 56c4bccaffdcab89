use super::*;

const SHORT: Kind = Kind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(86_400 * 30) };

fn millis(text: &str, unit: Unit) -> Option<u128> {
    match SHORT.parse(text, unit) {
        Ok(Value::Duration(duration)) => Some(duration.as_millis()),
        _ => None,
    }
}

#[test]
fn durations_have_a_unit() {
    for (text, expected) in [
        ("250ms", 250),
        ("90s", 90_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("1h30m", 5_400_000),
        ("1m500ms", 60_500),
        (" 3 s ", 3000),
        ("5 minutes", 300_000),
        ("1h 30min", 5_400_000),
    ] {
        assert_eq!(millis(text, Unit::Required), Some(expected), "{text}");
    }
}

#[test]
fn bare_number_needs_a_default_unit() {
    assert_eq!(millis("30000", Unit::Milliseconds), Some(30_000));
    assert_eq!(millis("30", Unit::Seconds), Some(30_000));
    assert_eq!(millis("5m", Unit::Seconds), Some(300_000));
    assert_eq!(
        SHORT.parse("30", Unit::Required),
        Err("the unit is missing; write a duration as `250ms`, `90s`, `5m`, `2h` or `7d`".to_owned())
    );
}

#[test]
fn malformed_durations_are_refused() {
    for text in ["", "s", "-5s", "5x", "5s3", "5us", "99999999999999999999s", "9999999999999d"] {
        assert_eq!(millis(text, Unit::Required), None, "{text}");
    }
}

#[test]
fn printed_durations_parse_back() {
    for text in ["1ms", "30s", "90s", "5m", "2m30s", "2h", "7d", "1d2h3m4s5ms"] {
        let value = SHORT.parse(text, Unit::Required).unwrap();
        assert_eq!(value.to_string(), text);
    }
}

#[test]
fn sizes_may_have_a_unit() {
    let kind = Kind::Bytes { min: 1, max: 1 << 40 };
    for (text, expected) in [("4096", 4096), ("8MiB", 8 << 20), ("1 GiB", 1 << 30), ("16KiB", 16 << 10)] {
        assert_eq!(kind.parse(text, Unit::Required), Ok(Value::Number(expected)));
    }
    assert!(kind.parse("8MB", Unit::Required).is_err());
    assert_eq!([format_bytes(8 << 20), format_bytes(1025), format_bytes(0)], ["8MiB", "1025", "0"]);
}

#[test]
fn switch_accepts_several_spellings() {
    for (text, on) in [("true", true), ("True", true), ("1", true), ("off", false), ("no", false)] {
        assert_eq!(Kind::Switch.parse(text, Unit::Required), Ok(Value::Switch(on)));
    }
    assert_eq!(Kind::Switch.parse("maybe", Unit::Required), Err("it must be `true` or `false`".to_owned()));
}
