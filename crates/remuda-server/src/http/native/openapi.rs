//! The native API as an OpenAPI 3.1 document, assembled from the route table. Written by hand rather than with a derive
//! crate: the table has everything but the schemas of answers, and a second description of each type would go stale.

use axum::Json;
use serde_json::{Map, Value, json};

use super::super::access::Access;
use super::super::error::ERROR_CODES;
use super::super::routes::Route;
use super::ROUTES;

pub(in crate::http) async fn document() -> Json<Value> {
    Json(assemble())
}

pub(in crate::http) fn assemble() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_ascii_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Remuda", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": { "Error": error_schema() },
        },
        "security": [{ "token": [] }],
    })
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "summary": route.summary,
        "parameters": parameters(route),
        "responses": responses(route),
        "x-access": route.access.as_str(),
    });
    if route.access == Access::Public {
        operation["security"] = json!([]);
    }
    if let Ok(example) = serde_json::from_str::<Value>(route.body) {
        let content = json!({ "schema": { "type": "object" }, "example": example });
        operation["requestBody"] = json!({ "content": { "application/json": content } });
    } else if route.is_streamed && route.method != "GET" {
        operation["requestBody"] = json!({ "content": { "application/octet-stream": {} } });
    }
    operation
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path =
        route.path.split(['{', '}']).skip(1).step_by(2).map(
            |name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }),
        );
    let in_query =
        route.query.iter().map(|name| json!({ "name": name, "in": "query", "schema": { "type": "string" } }));
    in_path.chain(in_query).collect()
}

/// One response for each status of the route's own codes; every other error has the same form.
fn responses(route: &Route) -> Value {
    let error = || json!({ "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } });
    let mut responses = json!({
        "2XX": { "description": "Success" },
        "default": { "description": "Any error; `code` says which", "content": error() },
    });
    let own = ERROR_CODES.iter().filter(|it| route.errors.contains(&it.code));
    for it in own {
        let status = it.status.as_u16().to_string();
        let described = match responses[&status]["description"].as_str() {
            Some(before) => format!("{before} `{}`: {}", it.code, it.remedy),
            None => format!("`{}`: {}", it.code, it.remedy),
        };
        responses[&status] = json!({ "description": described, "content": error() });
    }
    responses
}

fn error_schema() -> Value {
    let codes: Vec<_> = ERROR_CODES.iter().map(|it| it.code).collect();
    json!({
        "type": "object",
        "required": ["error"],
        "properties": { "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": { "type": "string", "enum": codes },
                "message": { "type": "string" },
                "detail": {},
            },
        } },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_describes_every_native_route_with_its_parameters() {
        let document = assemble();
        for route in ROUTES {
            let operation = &document["paths"][route.path][route.method.to_ascii_lowercase()];
            assert_eq!(operation["summary"], route.summary, "{} {}", route.method, route.path);
            assert_eq!(
                operation["parameters"].as_array().unwrap().len(),
                route.path.matches('{').count() + route.query.len()
            );
        }
        let cancel = &document["paths"]["/remuda/v1/jobs/{id}/cancel"]["post"];
        assert_eq!(cancel["parameters"][0]["name"], "id");
        assert!(cancel["responses"]["409"]["description"].as_str().unwrap().starts_with("`ended`: "));
        assert_eq!(document["paths"]["/health/live"]["get"]["security"], json!([]));
    }
}
