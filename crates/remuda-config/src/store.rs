//! The store's URL: `sqlite:PATH` or `memory:`. A URL can contain a password, so error messages print it through
//! `mask_secrets`.

use std::fmt;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// A file.
    Sqlite(PathBuf),
    /// Lost when the program ends.
    Memory,
}

impl StoreUrl {
    pub(super) fn parse(text: &str) -> Result<StoreUrl, String> {
        const RULE: &str = "write `sqlite:PATH` or `memory:`";
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(RULE.to_owned());
        };
        match scheme {
            "memory" if rest.is_empty() => Ok(StoreUrl::Memory),
            "sqlite" if !rest.is_empty() && !rest.starts_with("//") => {
                Ok(StoreUrl::Sqlite(PathBuf::from(rest)))
            }
            "postgres" | "postgresql" | "redis" | "rediss" => {
                Err(format!("{scheme} is not built in yet; {RULE}"))
            }
            _ => Err(RULE.to_owned()),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            StoreUrl::Memory => f.write_str("memory:"),
        }
    }
}

/// Replaces credentials before `@` and the value of `password=` by `***`.
pub(super) fn mask_secrets(text: &str) -> String {
    let mut shown = text.to_owned();
    // The last `@`: a password may contain one that is not escaped.
    if let (Some(start), Some(end)) = (shown.find("://"), shown.rfind('@'))
        && start < end
    {
        shown.replace_range(start + 3..end, "***");
    }
    if let Some(at) = shown.to_ascii_lowercase().find("password=") {
        let start = at + "password=".len();
        let end = shown[start..].find(['&', ' ']).map_or(shown.len(), |length| start + length);
        shown.replace_range(start..end, "***");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_is_a_file_or_memory() {
        assert_eq!(
            StoreUrl::parse("sqlite:/var/lib/x.sqlite"),
            Ok(StoreUrl::Sqlite("/var/lib/x.sqlite".into()))
        );
        assert_eq!(StoreUrl::parse("memory:"), Ok(StoreUrl::Memory));
        for text in ["", "sqlite:", "sqlite://x", "x.sqlite", "memory:x", "mysql://x"] {
            assert_eq!(StoreUrl::parse(text), Err("write `sqlite:PATH` or `memory:`".to_owned()), "{text}");
        }
        let why = StoreUrl::parse("redis://x").unwrap_err();
        assert_eq!(why, "redis is not built in yet; write `sqlite:PATH` or `memory:`");
    }

    #[test]
    fn passwords_are_masked() {
        for (text, shown) in [
            ("postgres://anna:geheim@db/remuda", "postgres://***@db/remuda"),
            ("redis://:ge@he/im@db", "redis://***@db"),
            ("postgres://db/x?user=a&PASSWORD=geheim&ssl=1", "postgres://db/x?user=a&PASSWORD=***&ssl=1"),
            ("postgres:host=db password=geheim", "postgres:host=db password=***"),
            ("sqlite:a@b.sqlite", "sqlite:a@b.sqlite"),
        ] {
            assert_eq!(mask_secrets(text), shown);
        }
    }
}
