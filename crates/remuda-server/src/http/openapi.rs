//! The OpenAPI document of every surface, for tools. Operations are assembled from the route table; the files below
//! `openapi/` have what a table cannot say, each once and by name: the schemas of bodies and answers, and the parameters.
//! Written by hand rather than with a derive crate: handlers and core would have to depend on it. The fuzzer of
//! `tests/it/clients/fuzzed.rs` sends what the document allows and forbids, and compares every answer with it.
//!
//! Comfy API v2 has a published contract, which is served unchanged with our additions (`comfy_v2/openapi.rs`).

use std::collections::BTreeSet;
use std::sync::LazyLock;

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

use super::access::Access;
use super::error::{ERROR_CODES, ErrorCode};
use super::routes::{RequestBody, Route};
use super::{Context, comfy_v2, comfyui, native, openai};

/// A surface whose operations are assembled.
struct Surface {
    routes: &'static [Route],
    tag: &'static str,
    description: &'static str,
    error_schema: &'static str,
    /// `{"parameters": {…}, "schemas": {…}}`
    parts: &'static str,
}

const NATIVE: Surface = Surface {
    routes: native::ROUTES,
    tag: "native",
    description: "Jobs, workers, machines, fleets and their administration.",
    error_schema: "Error",
    parts: include_str!("openapi/native.json"),
};
const OPENAI: Surface = Surface {
    routes: openai::ROUTES,
    tag: "openai",
    description: "OpenAI's API over the models of the plane and of its workers.",
    error_schema: "OpenaiError",
    parts: include_str!("openapi/openai.json"),
};
const COMFYUI: Surface = Surface {
    routes: comfyui::ROUTES,
    tag: "comfyui",
    description: "ComfyUI's own API: the fleet as one server. Every path is also served below `/api`.",
    error_schema: "ComfyuiError",
    parts: include_str!("openapi/comfyui.json"),
};

/// Codes that any route may answer with.
const EVERY_ROUTE: &[&str] = &[
    "no_token",
    "wrong_token",
    "forbidden",
    "origin_not_allowed",
    "host_not_allowed",
    "too_many_requests",
    "too_many_connections",
    "connections_full",
    "locked_out",
    "internal",
    "overloaded",
    "stopping",
    "store_unavailable",
    "outcome_unknown",
];
/// Codes of routes with a body.
const EVERY_BODY: &[&str] = &["bad_request", "too_slow", "too_large"];
/// Codes of routes with a JSON body.
const EVERY_JSON: &[&str] = &["invalid", "wrong_media_type"];

static WHOLE: LazyLock<Value> = LazyLock::new(|| {
    let mut document = comfy_v2::openapi::document();
    document["info"] =
        info("Every API of this plane. Paths below `/api/v2` are the Comfy API v2, version 2.0.0.");
    [NATIVE, OPENAI, COMFYUI].iter().for_each(|surface| add(&mut document, surface));
    document
});

static NATIVE_PART: LazyLock<Value> = LazyLock::new(|| {
    let mut document = json!({ "openapi": "3.0.3", "info": info("The native API of this plane.") });
    document["components"]["securitySchemes"]["bearerAuth"] = json!({ "type": "http", "scheme": "bearer" });
    add(&mut document, &NATIVE);
    document
});

pub(super) async fn document(State(context): State<Context>) -> Json<Value> {
    Json(secured(&WHOLE, context.access.is_open()))
}

pub(super) async fn native_document(State(context): State<Context>) -> Json<Value> {
    Json(secured(&NATIVE_PART, context.access.is_open()))
}

fn info(description: &str) -> Value {
    json!({ "title": "Remuda", "version": env!("CARGO_PKG_VERSION"), "description": description })
}

/// Whether a token is needed depends on whether there is one.
fn secured(document: &Value, is_open: bool) -> Value {
    let mut document = document.clone();
    document["components"]["securitySchemes"]["basicAuth"] = json!({
        "type": "http", "scheme": "basic", "description": "Any user name, and the token as the password: for browsers.",
    });
    let mut accepted = vec![json!({ "bearerAuth": [] }), json!({ "basicAuth": [] })];
    accepted.extend(is_open.then(|| json!({})));
    document["security"] = accepted.into();
    document
}

fn add(document: &mut Value, surface: &Surface) {
    let mut parts: Value =
        serde_json::from_str(surface.parts).expect("it is part of the program, and a test reads it");
    let tag = json!({ "name": surface.tag, "description": surface.description });
    match &mut document["tags"] {
        Value::Array(tags) => tags.push(tag),
        none => *none = json!([tag]),
    }
    for route in surface.routes {
        document["paths"][route.path][route.method.to_ascii_lowercase()] =
            operation(surface, route, &parts["parameters"]);
    }
    if let Value::Object(schemas) = parts["schemas"].take() {
        for (name, schema) in schemas {
            document["components"]["schemas"][name] = schema;
        }
    }
    if surface.tag == NATIVE.tag {
        document["components"]["schemas"][NATIVE.error_schema] = error_schema();
    }
}

fn operation(surface: &Surface, route: &Route, described: &Value) -> Value {
    let mut operation = json!({
        "operationId": operation_id(route),
        "tags": [surface.tag],
        "summary": route.summary,
        "parameters": parameters(route, described),
        "responses": responses(surface, route),
        "x-access": route.access.as_str(),
    });
    if route.access == Access::Public {
        operation["security"] = json!([]);
    }
    if let Some(body) = request_body(route) {
        operation["requestBody"] = body;
    }
    operation
}

/// `post_remuda_v1_jobs_id_cancel`
fn operation_id(route: &Route) -> String {
    let words = route.path.split(|char: char| !char.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    // `/remuda` and `/remuda/` are two routes.
    let index = (route.path.len() > 1 && route.path.ends_with('/')).then_some("index");
    let method = route.method.to_ascii_lowercase();
    std::iter::once(method.as_str()).chain(words).chain(index).collect::<Vec<_>>().join("_")
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

/// Any bytes.
fn binary() -> Value {
    json!({ "type": "string", "format": "binary" })
}

fn request_body(route: &Route) -> Option<Value> {
    let (content, is_required) = match route.body {
        RequestBody::None => return None,
        RequestBody::Json { schema, example, is_required } => {
            let example: Value = serde_json::from_str(example).unwrap_or_default();
            let content = json!({ "schema": reference(schema), "example": example });
            (json!({ "application/json": content }), is_required)
        }
        RequestBody::Form(schema) => {
            (json!({ "multipart/form-data": { "schema": reference(schema) } }), true)
        }
        RequestBody::Bytes(["text/plain"]) => {
            (json!({ "text/plain": { "schema": { "type": "string" } } }), false)
        }
        RequestBody::Bytes(types) => {
            let content = types.iter().map(|it| ((*it).to_owned(), json!({ "schema": binary() })));
            (content.collect::<Map<_, _>>().into(), false)
        }
    };
    Some(json!({ "required": is_required, "content": content }))
}

/// In the path, the query and the headers.
fn parameters(route: &Route, described: &Value) -> Vec<Value> {
    let in_path = route.path.split(['{', '}']).skip(1).step_by(2).map(|name| ("path", name));
    let in_query = route.query.iter().map(|name| ("query", *name));
    let in_headers = route.headers.iter().map(|name| ("header", *name));
    let names = in_path.chain(in_query).chain(in_headers);
    let parameter = |((place, name), keys): ((&str, &str), [String; 2])| {
        let found = keys.iter().find_map(|key| described.get(key)).cloned();
        let mut parameter = found.unwrap_or_else(|| json!({ "schema": { "type": "string" } }));
        (parameter["name"], parameter["in"]) = (name.into(), place.into());
        if place == "path" {
            parameter["required"] = true.into();
        }
        parameter
    };
    names.zip(parameter_keys(route)).map(parameter).collect()
}

/// Under which names the parameters of a route are described, in their order. Where the name itself says too little, the
/// path stands before it; in a path, the word before it.
fn parameter_keys(route: &Route) -> Vec<[String; 2]> {
    let segments: Vec<&str> = route.path.split('/').collect();
    let in_path = segments
        .windows(2)
        .filter(|pair| pair[1].starts_with('{'))
        .map(|pair| [format!("{}/{}", pair[0], pair[1]), pair[1].to_owned()]);
    let others = route.query.iter().chain(route.headers);
    in_path.chain(others.map(|name| [format!("{} {name}", route.path), (*name).to_owned()])).collect()
}

fn responses(surface: &Surface, route: &Route) -> Value {
    let mut responses = Map::new();
    for error in ERROR_CODES.iter().filter(|error| may_answer(route, error.code)) {
        add_error(&mut responses, surface, error);
    }
    for (status, content) in route.answers {
        let plain = json!({ "description": reason_phrase(*status) });
        let response = responses.entry(status.to_string()).or_insert_with(|| plain.clone());
        match *content {
            "" => *response = plain,
            "text/event-stream" => {
                response["content"]["text/event-stream"]["schema"] = reference("ServerSentEvent");
            }
            media_type if media_type.contains('/') => response["content"][media_type]["schema"] = binary(),
            schema => {
                // Some answers share their status with errors.
                let known = &mut response["content"]["application/json"]["schema"];
                *known = match known.take() {
                    Value::Null => reference(schema),
                    error => json!({ "anyOf": [reference(schema), error] }),
                };
            }
        }
    }
    Value::Object(responses)
}

fn reason_phrase(status: u16) -> &'static str {
    let status = axum::http::StatusCode::from_u16(status).ok();
    status.and_then(|status| status.canonical_reason()).unwrap_or_default()
}

fn may_answer(route: &Route, code: &str) -> bool {
    let has_path_parameters = route.path.contains('{');
    let has_parameters = has_path_parameters || !route.query.is_empty() || !route.headers.is_empty();
    let is_json = matches!(route.body, RequestBody::Json { .. });
    let needs_token =
        route.access != Access::Public || !matches!(code, "no_token" | "wrong_token" | "forbidden");
    needs_token && EVERY_ROUTE.contains(&code)
        || has_parameters && code == "bad_request"
        || has_path_parameters && code == "not_found"
        || route.body != RequestBody::None && EVERY_BODY.contains(&code)
        || is_json && EVERY_JSON.contains(&code)
        || route.method != "GET" && code == "store_full"
        || route.errors.contains(&code)
}

fn add_error(responses: &mut Map<String, Value>, surface: &Surface, error: &ErrorCode) {
    let status = if surface.tag == OPENAI.tag { openai::error_status(error.status) } else { error.status };
    let said = format!("`{}`: {}", error.code, error.remedy);
    let response = responses.entry(status.as_u16().to_string()).or_insert_with(|| {
        json!({
            "description": "",
            "content": { "application/json": { "schema": reference(surface.error_schema) } },
        })
    });
    let before = response["description"].as_str().unwrap_or_default();
    response["description"] = if before.is_empty() { said.into() } else { format!("{before} {said}").into() };
    if matches!(status.as_u16(), 429 | 503 | 507) {
        response["headers"]["Retry-After"] =
            json!({ "description": "Seconds.", "schema": { "type": "integer", "minimum": 0 } });
    }
}

/// The one form of every native error.
fn error_schema() -> Value {
    let codes: BTreeSet<_> = ERROR_CODES.iter().map(|it| it.code).collect();
    json!({
        "type": "object",
        "required": ["error"],
        "properties": { "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": { "type": "string", "enum": codes, "description": "For programs." },
                "message": { "type": "string", "description": "For people." },
                "detail": { "description": "Further facts, such as the errors of a graph's nodes." },
            },
        } },
    })
}

#[cfg(test)]
mod tests;
