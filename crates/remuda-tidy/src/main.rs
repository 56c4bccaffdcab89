//! Prints the measures of the code base, or with `graph` the modules of every crate as Mermaid drawings. `supply` checks the
//! dependencies, `sbom` lists them for a release, and `import-advisories CLONE` makes the pinned copy of the advisory database.
#![expect(clippy::print_stdout, reason = "printing is all it does")]

mod supply_commands;

use std::process::ExitCode;

use remuda_tidy::source::rust_files;
use remuda_tidy::{modules, types, words};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["graph"] => print_graphs(),
        ["words"] => print_words(),
        ["types"] => print_types(),
        [] => print_measures(),
        ["supply"] => return supply_commands::check(),
        ["sbom"] => return supply_commands::print_sbom(),
        ["import-advisories", clone] => return supply_commands::print_copy(clone.as_ref()),
        _ => {
            eprintln!(
                "remuda-tidy: graph, words, types, supply, sbom or import-advisories CLONE; nothing for measures"
            );
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn print_measures() {
    let files = rust_files();
    let production: Vec<usize> = files
        .iter()
        .filter(|file| file.is_production())
        .map(|file| file.production_lines().count())
        .collect();
    let tests: usize =
        files.iter().map(|file| file.lines().count()).sum::<usize>() - production.iter().sum::<usize>();
    let mut sorted = production.clone();
    sorted.sort_unstable();
    println!("production lines         {}", production.iter().sum::<usize>());
    println!("test lines               {tests}");
    println!(
        "files, median, longest   {}, {}, {}",
        sorted.len(),
        sorted[sorted.len() / 2],
        sorted[sorted.len() - 1]
    );
    for (name, count) in
        [("comments", words::in_comments()), ("code", words::in_code()), ("documents", words::in_documents())]
    {
        println!(
            "avoided words, {name:<10}{:.1} per 10,000 ({} in {})",
            count.per_ten_thousand(),
            count.hits.len(),
            count.words
        );
    }
    let definitions = types::definitions();
    let reused = types::reused(&definitions);
    let public = reused.values().filter(|all| all.iter().filter(|it| it.is_public).count() > 1).count();
    println!(
        "type names reused        {:.1} % of {} definitions; {public} names of two public types",
        types::reused_percent(&definitions),
        definitions.len()
    );
    for (name, graph) in modules::graphs() {
        let cycles = modules::cycles(&graph);
        let largest = cycles.iter().map(Vec::len).max().unwrap_or(0);
        println!(
            "module cycles, {name:<18}{} of {} modules{}",
            largest,
            graph.len(),
            if cycles.is_empty() { String::new() } else { format!(": {cycles:?}") }
        );
    }
}

fn print_words() {
    for count in [words::in_comments(), words::in_code(), words::in_documents()] {
        for hit in count.hits {
            println!("{}:{}: {}", hit.file, hit.line, hit.word);
        }
    }
}

fn print_types() {
    for (name, all) in types::reused(&types::definitions()) {
        let files: Vec<_> =
            all.iter().map(|it| format!("{}{}", it.file, if it.is_public { " (pub)" } else { "" })).collect();
        println!("{name}: {}", files.join(", "));
    }
}

fn print_graphs() {
    for (name, graph) in modules::graphs() {
        println!("%% {name}\ngraph TD");
        for (module, uses) in graph {
            for used in uses {
                println!("  {module} --> {used}");
            }
        }
    }
}
