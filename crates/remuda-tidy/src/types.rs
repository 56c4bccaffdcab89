//! Type names that are defined more than once: such a name cannot be searched for, and a reader has to find out which
//! of them is meant.

use std::collections::BTreeMap;

use syn::{Attribute, Item, Visibility};

use crate::source::{SourceFile, rust_files};

/// Where a type of a certain name is defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeDefinition {
    pub name: String,
    /// Relative to `crates/`.
    pub file: String,
    /// `pub` without restriction.
    pub is_public: bool,
}

/// Every struct, enum, union, trait and alias of the production code, at the level of modules.
pub fn definitions() -> Vec<TypeDefinition> {
    let mut found = Vec::new();
    for file in rust_files().iter().filter(|file| file.is_production()) {
        let Ok(parsed) = syn::parse_file(&file.text) else { continue };
        collect(&parsed.items, file, &mut found);
    }
    found
}

fn collect(items: &[Item], file: &SourceFile, found: &mut Vec<TypeDefinition>) {
    for item in items {
        let (name, visibility) = match item {
            Item::Struct(it) if !is_test(&it.attrs) => (&it.ident, &it.vis),
            Item::Enum(it) if !is_test(&it.attrs) => (&it.ident, &it.vis),
            Item::Union(it) if !is_test(&it.attrs) => (&it.ident, &it.vis),
            Item::Trait(it) if !is_test(&it.attrs) => (&it.ident, &it.vis),
            Item::Type(it) if !is_test(&it.attrs) => (&it.ident, &it.vis),
            Item::Mod(module) if !is_test(&module.attrs) => {
                if let Some((_, items)) = &module.content {
                    collect(items, file, found);
                }
                continue;
            }
            _ => continue,
        };
        let is_public = matches!(visibility, Visibility::Public(_));
        found.push(TypeDefinition { name: name.to_string(), file: file.name.clone(), is_public });
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test")
    })
}

/// Definitions that share their name with another one, by name.
pub fn reused(definitions: &[TypeDefinition]) -> BTreeMap<String, Vec<TypeDefinition>> {
    let mut by_name: BTreeMap<String, Vec<TypeDefinition>> = BTreeMap::new();
    for definition in definitions {
        by_name.entry(definition.name.clone()).or_default().push(definition.clone());
    }
    by_name.retain(|_, all| all.len() > 1);
    by_name
}

/// Percent of all definitions whose name another definition has already.
pub fn reused_percent(definitions: &[TypeDefinition]) -> f64 {
    let repeats: usize = reused(definitions).values().map(|all| all.len() - 1).sum();
    repeats as f64 * 100.0 / definitions.len().max(1) as f64
}
