//! The route table. Each surface (`native`, `openai`, `comfy_v2`, `comfyui`) lists its routes once; the router, the access
//! rules, `docs/http.md` and the OpenAPI document all follow from these lists.

use std::collections::HashMap;
use std::sync::LazyLock;

use axum::Router;
use axum::routing::MethodRouter;

use super::access::Access;
use super::{Context, comfy_v2, comfyui, native, openai};

/// One method of one path.
pub(super) struct Route {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) access: Access,
    pub(super) summary: &'static str,
    /// Query parameters it accepts.
    pub(super) query: &'static [&'static str],
    /// Request headers that change its answer.
    pub(super) headers: &'static [&'static str],
    pub(super) body: RequestBody,
    /// Answers other than errors: a status, and the schema of a JSON body, a media type, or nothing. Empty for routes of
    /// Comfy API v2, whose contract has them.
    pub(super) answers: &'static [(u16, &'static str)],
    /// Error codes beyond those that every route of its kind may answer with.
    pub(super) errors: &'static [&'static str],
    /// The action's name in the audit log; empty if it is not logged.
    pub(super) audit: &'static str,
    /// The handler reads the body itself, within its own limits; otherwise it is read whole, up to `limits.body_bytes_max`.
    pub(super) is_streamed: bool,
    pub(super) handler: fn() -> MethodRouter<Context>,
}

/// What a route reads from the body of a request. Schemas are those of the OpenAPI document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestBody {
    None,
    Json {
        schema: &'static str,
        example: &'static str,
        is_required: bool,
    },
    /// `multipart/form-data`.
    Form(&'static str),
    /// Any bytes of these media types.
    Bytes(&'static [&'static str]),
}

#[cfg(test)]
impl RequestBody {
    /// An example of a JSON body.
    pub(super) fn example(self) -> Option<&'static str> {
        match self {
            RequestBody::Json { example, .. } => Some(example),
            RequestBody::None | RequestBody::Form(_) | RequestBody::Bytes(_) => None,
        }
    }
}

/// `route!(POST "/remuda/v1/jobs", Client, jobs::submit, "Submit a job" => 201 "Submitted")`.
macro_rules! route {
    ($method:ident $path:literal, $access:ident, $handler:path, $summary:literal $(=> $($status:literal $content:literal),+)?) => {
        $crate::http::routes::Route {
            method: stringify!($method),
            path: $path,
            access: $crate::http::access::Access::$access,
            summary: $summary,
            query: &[],
            headers: &[],
            body: $crate::http::routes::RequestBody::None,
            answers: &[$($(($status, $content)),+)?],
            errors: &[],
            audit: "",
            is_streamed: false,
            handler: || axum::routing::on(axum::routing::MethodFilter::$method, $handler),
        }
    };
}
pub(super) use route;

impl Route {
    pub(super) const fn query(mut self, query: &'static [&'static str]) -> Route {
        self.query = query;
        self
    }

    pub(super) const fn headers(mut self, headers: &'static [&'static str]) -> Route {
        self.headers = headers;
        self
    }

    pub(super) const fn body(mut self, schema: &'static str, example: &'static str) -> Route {
        self.body = RequestBody::Json { schema, example, is_required: true };
        self
    }

    pub(super) const fn optional_body(mut self, schema: &'static str, example: &'static str) -> Route {
        self.body = RequestBody::Json { schema, example, is_required: false };
        self
    }

    pub(super) const fn form(mut self, schema: &'static str) -> Route {
        self.body = RequestBody::Form(schema);
        self
    }

    pub(super) const fn bytes(mut self, media_types: &'static [&'static str]) -> Route {
        self.body = RequestBody::Bytes(media_types);
        self
    }

    pub(super) const fn errors(mut self, errors: &'static [&'static str]) -> Route {
        self.errors = errors;
        self
    }

    pub(super) const fn audited(mut self, action: &'static str) -> Route {
        self.audit = action;
        self
    }

    pub(super) const fn streamed(mut self) -> Route {
        self.is_streamed = true;
        self
    }

    /// For requests that match no route.
    const fn unmatched(access: Access) -> Route {
        Route {
            method: "",
            path: "",
            access,
            summary: "",
            query: &[],
            headers: &[],
            body: RequestBody::None,
            answers: &[],
            errors: &[],
            audit: "",
            is_streamed: false,
            handler: MethodRouter::new,
        }
    }
}

/// Every surface. The ComfyUI routes are also served below `/api`, as ComfyUI does.
pub(super) const SURFACES: [&[Route]; 4] =
    [native::ROUTES, comfy_v2::ROUTES, openai::ROUTES, comfyui::ROUTES];

/// Paths below this prefix are for admins unless their route says otherwise.
const NATIVE_PREFIX: &str = "/remuda/v1";
const COMFYUI_ALIAS_PREFIX: &str = "/api";

static UNMATCHED_NATIVE: Route = Route::unmatched(Access::Admin);
static UNMATCHED: Route = Route::unmatched(Access::Client);

static BY_PATH: LazyLock<HashMap<String, Vec<&'static Route>>> = LazyLock::new(|| {
    let mut by_path = HashMap::<String, Vec<&'static Route>>::new();
    for route in all() {
        by_path.entry(route.path.to_owned()).or_default().push(route);
    }
    for route in comfyui::ROUTES {
        if !route.path.starts_with(COMFYUI_ALIAS_PREFIX) {
            by_path.entry(format!("{COMFYUI_ALIAS_PREFIX}{}", route.path)).or_default().push(route);
        }
    }
    by_path
});

pub(super) fn all() -> impl Iterator<Item = &'static Route> {
    const { &SURFACES }.iter().flat_map(|routes| routes.iter())
}

/// The route of a request, by the path as the router matched it. A path without a route is for admins in the native API,
/// which therefore reveals nothing by accident, and for clients elsewhere.
pub(super) fn find(method: &str, path: Option<&str>) -> &'static Route {
    let Some(path) = path else { return &UNMATCHED };
    let routes = BY_PATH.get(path).map_or(&[][..], Vec::as_slice);
    let by_method = |method: &str| routes.iter().copied().find(|route| route.method == method);
    let found = by_method(method).or_else(|| if method == "HEAD" { by_method("GET") } else { None });
    found.unwrap_or(if path.starts_with(NATIVE_PREFIX) { &UNMATCHED_NATIVE } else { &UNMATCHED })
}

pub(super) fn router(routes: impl IntoIterator<Item = &'static Route>) -> Router<Context> {
    routes.into_iter().fold(Router::new(), |router, route| router.route(route.path, (route.handler)()))
}

/// As `router`, for ComfyUI: each route also below `/api`.
pub(super) fn aliased_router(routes: &'static [Route]) -> Router<Context> {
    let aliased = routes.iter().filter(|route| !route.path.starts_with(COMFYUI_ALIAS_PREFIX));
    aliased.fold(router(routes), |router, route| {
        router.route(&format!("{COMFYUI_ALIAS_PREFIX}{}", route.path), (route.handler)())
    })
}

#[cfg(test)]
mod tests {
    use super::super::error::ERROR_CODES;
    use super::*;

    /// Faults: X17.
    #[test]
    fn every_route_is_listed_once_and_its_error_codes_exist() {
        for route in all() {
            let name = format!("{} {}", route.method, route.path);
            let same = all().filter(|other| (other.method, other.path) == (route.method, route.path));
            assert_eq!(same.count(), 1, "{name} is listed more than once");
            assert!(!route.summary.is_empty(), "{name} has no summary");
            for code in route.errors {
                assert!(ERROR_CODES.iter().any(|it| it.code == *code), "{name}: unknown error code {code}");
            }
            if let Some(example) = route.body.example() {
                serde_json::from_str::<serde_json::Value>(example)
                    .unwrap_or_else(|error| panic!("{name}: its example body is no JSON: {error}"));
            }
        }
    }

    #[test]
    fn unlisted_native_paths_are_for_admins() {
        let access = |method: &str, path: &str| find(method, Some(path)).access;
        assert_eq!(access("GET", "/remuda/v1/secrets"), Access::Admin);
        assert_eq!(access("PATCH", "/remuda/v1/jobs"), Access::Admin);
        assert_eq!(access("HEAD", "/remuda/v1/blobs/{hash}"), Access::AnyToken);
        assert_eq!(access("GET", "/api/v2/jobs/{id}"), Access::Client);
        assert_eq!(access("GET", "/api/queue"), Access::Client);
        assert_eq!(find("GET", None).access, Access::Client);
    }
}
