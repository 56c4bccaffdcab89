//! Embeds the texts of a JSON list, as a JSON list of vectors: `embed FOLDER [int8] < texts.json`.

use std::error::Error;
use std::io;

use remuda_models::engine::engines;
use remuda_models::{Beacon, LoadedModel, ModelRequest, ModelSpec, PartAnswer, Precision};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut spec = ModelSpec::new("embed", args.next().ok_or("pass the model's folder")?);
    if args.next().is_some_and(|word| word == "int8") {
        spec.precision = Precision::Int8;
    }
    let (engine, found) = engines().find(&spec)?;
    eprintln!("{found:?}");
    let texts: Vec<String> = serde_json::from_reader(io::stdin())?;
    let parts = engine.prepare(&spec)?.prepare(ModelRequest::TextEmbedding { texts })?;
    let mut model: LoadedModel = engine.load(&spec, &Beacon::default())?;
    let answers = model.answer(&parts, &Beacon::default(), &mut |_| {})?;
    let vectors = answers.into_iter().filter_map(|answer| match answer {
        PartAnswer::Vector(vector) => Some(vector),
        _ => None,
    });
    serde_json::to_writer(io::stdout(), &vectors.collect::<Vec<_>>())?;
    Ok(())
}
