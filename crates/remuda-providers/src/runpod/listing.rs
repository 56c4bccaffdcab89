//! Lists every pod of the account. A list that may be incomplete is an error: the core would take missing pods for
//! gone.

use std::collections::BTreeMap;

use remuda_core::provider::{Pod, ProviderError, ProviderErrorClass};
use serde::Deserialize;

use super::api::Api;
use super::error;
use super::pod::PodView;

/// One call for any usual fleet; an answer of so many pods with all their fields stays within the size limit.
const PAGE_SIZE: &str = "500";

/// No account has more pods than that: the list does not end.
const PAGES_MAX: usize = 40;

#[derive(Deserialize)]
struct Page {
    pods: Vec<PodView>,
    #[serde(default)]
    pagination: Option<Pagination>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pagination {
    #[serde(default)]
    next_cursor: Option<String>,
    has_next_page: bool,
}

pub(super) async fn list_all(api: &Api, allows_unpaged: bool) -> Result<Vec<Pod>, ProviderError> {
    let odd = |why: String| {
        ProviderError::new(ProviderErrorClass::Transient, format!("the list of pods was answered, but {why}"))
    };
    // By id: a pod that moves to the next page while the list is read is still one pod.
    let mut pods = BTreeMap::new();
    let mut cursors: Vec<String> = Vec::new();
    while cursors.len() < PAGES_MAX {
        let mut query = vec![("limit", PAGE_SIZE)];
        query.extend(cursors.last().map(|cursor| ("cursor", cursor.as_str())));
        let answer = api.get(&["pods"], &query).await?;
        let page: Page = error::read(&answer).map_err(odd)?;
        for listed in page.pods {
            if let Some(pod) = listed.into_pod().map_err(odd)? {
                pods.insert(pod.id.clone(), pod);
            }
        }
        let next = match page.pagination {
            Some(Pagination { has_next_page: false, .. }) => return Ok(pods.into_values().collect()),
            None if allows_unpaged => return Ok(pods.into_values().collect()),
            None => return Err(odd("it does not say whether there is more".to_owned())),
            Some(Pagination { next_cursor, .. }) => next_cursor,
        };
        match next {
            Some(cursor) if !cursor.is_empty() && !cursors.contains(&cursor) => cursors.push(cursor),
            _ => return Err(odd("there is more of it, and no way to get there".to_owned())),
        }
    }
    Err(odd(format!("it does not end after {PAGES_MAX} pages")))
}
