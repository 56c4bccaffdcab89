//! Which top-level module of a crate uses which, and whether any of them form a cycle. A cycle means that none of its
//! modules can be read, tested or moved without the others.
//!
//! An edge is a path in the production code that begins with `crate::` or reaches the root through `super::`. Names that
//! the root re-exports (`crate::Pool`) lead to the module they come from.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, Path, UseTree};

use crate::source::{SourceFile, rust_files};

/// The module graph of one crate: each top-level module with those it uses.
pub type ModuleGraph = BTreeMap<String, BTreeSet<String>>;

/// The graph of every crate, by the crate's name.
pub fn graphs() -> BTreeMap<String, ModuleGraph> {
    let files = rust_files();
    let crates: BTreeSet<_> = files.iter().map(SourceFile::crate_name).collect();
    let graph = |name: &str| {
        let files = files.iter().filter(|file| file.crate_name() == name && file.is_production());
        (name.to_owned(), graph_of(&files.collect::<Vec<_>>()))
    };
    crates.into_iter().map(graph).collect()
}

fn graph_of(files: &[&SourceFile]) -> ModuleGraph {
    let modules: BTreeSet<String> =
        files.iter().filter_map(|file| module_path(file)).filter_map(|path| path.first().cloned()).collect();
    let exports = files
        .iter()
        .find(|file| file.name.ends_with("/src/lib.rs"))
        .map(|file| exports(&file.text, &modules))
        .unwrap_or_default();
    let mut graph: ModuleGraph = modules.iter().map(|module| (module.clone(), BTreeSet::new())).collect();
    for file in files {
        let Some(path) = module_path(file) else { continue };
        let Some(own) = path.first().cloned() else { continue };
        let Ok(parsed) = syn::parse_file(&file.text) else { continue };
        let mut visitor = Uses { module: path, targets: BTreeSet::new() };
        visitor.visit_file(&parsed);
        let targets = visitor.targets.into_iter().filter_map(|target| {
            if modules.contains(&target) { Some(target) } else { exports.get(&target).cloned() }
        });
        graph.entry(own.clone()).or_default().extend(targets.filter(|target| *target != own));
    }
    graph
}

/// `remuda-core/src/plane/beats.rs` is `["plane", "beats"]`; the root and programs have no path.
fn module_path(file: &SourceFile) -> Option<Vec<String>> {
    let (_, path) = file.name.split_once("/src/")?;
    let path: Vec<_> = path.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    (path != ["lib"] && path != ["main"] && path.first().is_some_and(|first| first != "bin")).then_some(path)
}

/// Names that the root re-exports, with the top-level module each comes from.
fn exports(text: &str, modules: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    let Ok(parsed) = syn::parse_file(text) else { return exports };
    for item in parsed.items {
        let Item::Use(item) = item else { continue };
        let mut paths = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut paths);
        for path in paths {
            let path: Vec<_> =
                path.into_iter().filter(|segment| segment != "self" && segment != "crate").collect();
            if let (Some(first), Some(last)) = (path.first(), path.last())
                && modules.contains(first)
            {
                exports.insert(last.clone(), first.clone());
            }
        }
    }
    exports
}

fn flatten(tree: &UseTree, prefix: &mut Vec<String>, paths: &mut Vec<Vec<String>>) {
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, paths);
            prefix.pop();
        }
        UseTree::Name(name) => paths.push([prefix.as_slice(), &[name.ident.to_string()]].concat()),
        UseTree::Rename(rename) => paths.push([prefix.as_slice(), &[rename.ident.to_string()]].concat()),
        UseTree::Glob(_) => paths.push(prefix.clone()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, prefix, paths)),
    }
}

/// Collects the first segment below the root of every path that reaches it.
struct Uses {
    module: Vec<String>,
    targets: BTreeSet<String>,
}

impl Uses {
    fn add(&mut self, path: &[String]) {
        let supers = path.iter().take_while(|segment| *segment == "super").count();
        let target = match path.first().map(String::as_str) {
            Some("crate") => path.get(1),
            Some("super") if supers >= self.module.len() => path.get(supers),
            _ => None,
        };
        self.targets.extend(target.cloned());
    }
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if is_test(&module.attrs) {
            return;
        }
        self.module.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if is_test(&item.attrs) {
            return;
        }
        let mut paths = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut paths);
        for path in paths {
            self.add(&path);
        }
    }

    fn visit_path(&mut self, path: &'ast Path) {
        self.add(&path.segments.iter().map(|segment| segment.ident.to_string()).collect::<Vec<_>>());
        visit::visit_path(self, path);
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test")
    })
}

/// The sets of modules that can reach each other: every set is a cycle.
pub fn cycles(graph: &ModuleGraph) -> Vec<Vec<String>> {
    let reachable: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|module| (module, reachable(graph, module))).collect();
    let mut cycles = Vec::new();
    let mut seen = BTreeSet::new();
    for module in graph.keys() {
        if seen.contains(module) {
            continue;
        }
        let cycle: Vec<_> = graph
            .keys()
            .filter(|other| reachable[module].contains(other) && reachable[other].contains(module))
            .cloned()
            .collect();
        if cycle.len() > 1 {
            seen.extend(cycle.iter().cloned());
            cycles.push(cycle);
        }
    }
    cycles
}

fn reachable<'a>(graph: &'a ModuleGraph, from: &String) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&String> = graph.get(from).into_iter().flatten().collect();
    while let Some(module) = open.pop() {
        if found.insert(module) {
            open.extend(graph.get(module).into_iter().flatten());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> SourceFile {
        SourceFile { name: name.to_owned(), text: text.to_owned(), is_test: false }
    }

    #[test]
    fn cycles_are_found_through_use_paths_super_and_reexports() {
        let files = [
            file("x/src/lib.rs", "mod a; mod b; mod c; mod d; pub use self::c::Thing;"),
            file("x/src/a.rs", "use crate::b::One;"),
            file("x/src/b.rs", "fn f() -> crate::Thing { loop {} }"),
            file("x/src/c/deep.rs", "use super::super::a::Two;"),
            file("x/src/d.rs", "use crate::a::Two; #[cfg(test)] mod tests { use crate::a::Two; }"),
        ];
        let graph = graph_of(&files.iter().collect::<Vec<_>>());
        assert_eq!(cycles(&graph), [["a", "b", "c"]]);
        let straight = [
            file("x/src/lib.rs", "mod a; mod b;"),
            file("x/src/a.rs", "use crate::b::One; #[cfg(test)] mod tests { use crate::b; }"),
            file("x/src/b.rs", "use super::b; #[cfg(test)] mod tests { use crate::a; }"),
        ];
        assert!(cycles(&graph_of(&straight.iter().collect::<Vec<_>>())).is_empty());
    }
}
