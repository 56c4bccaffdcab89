//! Every pod of the account. A list that is not surely complete is none: from what is missing in it, machines would be
//! taken for gone.

use std::collections::BTreeMap;

use remuda_core::provider::{Pod, ProviderError, ProviderErrorClass};
use serde::Deserialize;

use super::api::Api;
use super::fault;
use super::pod::Listed;

/// One call for any fleet of a usual size; an answer of so many pods with all their fields stays within bounds.
const PAGE: &str = "500";

/// More pods than that nobody has: it is a list without an end.
const PAGES_MAX: usize = 40;

#[derive(Deserialize)]
struct Page {
    pods: Vec<Listed>,
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

pub(super) async fn all(api: &Api, allows_unpaged: bool) -> Result<Vec<Pod>, ProviderError> {
    let odd = |why: String| {
        ProviderError::new(ProviderErrorClass::Transient, format!("the list of pods was answered, but {why}"))
    };
    // By id: a pod that moves from one page to the next while we read is one pod.
    let mut pods = BTreeMap::new();
    let mut cursors: Vec<String> = Vec::new();
    while cursors.len() < PAGES_MAX {
        let mut query = vec![("limit", PAGE)];
        query.extend(cursors.last().map(|cursor| ("cursor", cursor.as_str())));
        let answer = api.get(&["pods"], &query).await?;
        let page: Page = fault::read(&answer).map_err(odd)?;
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
