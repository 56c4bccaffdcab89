//! Finds a file in a package index (<https://packaging.python.org/specifications/simple-repository-api/>). Only links are
//! read from its pages.

use reqwest::{Client, Url};

use super::{FetchError, PackageArchive};

/// The size limit of a project's page.
const PAGE_BYTES_MAX: usize = 8 << 20;

/// Finds the address of an archive.
pub(super) async fn find(client: &Client, index: &str, archive: &PackageArchive) -> Result<Url, FetchError> {
    let wrong = || FetchError::Index { index: index.to_owned() };
    let page = format!("{}/{}/", index.trim_end_matches('/'), archive.project);
    let page = Url::parse(&page).map_err(|_| wrong())?;
    if !is_http(&page) {
        return Err(wrong());
    }
    let unreachable = |source| FetchError::Unreachable { url: page.to_string(), source };
    let mut answer =
        client.get(page.clone()).header("accept", "text/html").send().await.map_err(unreachable)?;
    if !answer.status().is_success() {
        return Err(FetchError::Refused { url: page.to_string(), status: answer.status() });
    }
    // Links are relative to the final address after redirects.
    let base = answer.url().clone();
    let mut text = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(unreachable)? {
        text.extend_from_slice(&chunk);
        if text.len() > PAGE_BYTES_MAX {
            return Err(wrong());
        }
    }
    let name = archive.file.name;
    link(&String::from_utf8_lossy(&text), &base, name)
        .ok_or_else(|| FetchError::Absent { index: index.to_owned(), file: name.to_owned() })
}

/// The first link to a file of this name.
fn link(page: &str, base: &Url, name: &str) -> Option<Url> {
    let references = page.split("href=").skip(1).filter_map(|rest| {
        let quote = rest.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
        rest[1..].split(quote).next()
    });
    references
        .filter_map(|reference| base.join(&reference.trim().replace("&amp;", "&")).ok())
        .filter(is_http)
        .find(|url| url.path_segments().is_some_and(|mut segments| segments.next_back() == Some(name)))
        .map(|mut url| {
            url.set_fragment(None);
            url
        })
}

fn is_http(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_is_found_by_file_name_and_resolved() {
        let base = Url::parse("https://index.test/simple/it/").unwrap();
        let found = |page: &str| link(page, &base, "it-1.0.whl").map(|url| url.to_string());
        let cases = [
            (
                r#"<a href="https://files.test/a/it-1.0.whl#sha256=00">"#,
                Some("https://files.test/a/it-1.0.whl"),
            ),
            ("<a href='../../files/it-1.0.whl'>", Some("https://index.test/files/it-1.0.whl")),
            (r#"<a href="it-1.0.whl?a=1&amp;b=2">"#, Some("https://index.test/simple/it/it-1.0.whl?a=1&b=2")),
            (r#"<a href="it-1.0.1.whl"><a href="not-it-1.0.whl">"#, None),
            (r#"<a href="file:///it-1.0.whl">"#, None),
            (r#"<a href="it-1.0.whl"#, Some("https://index.test/simple/it/it-1.0.whl")),
            ("<a href=", None),
            ("", None),
        ];
        for (page, expected) in cases {
            assert_eq!(found(page).as_deref(), expected, "{page}");
        }
    }
}
