//! Writes pixels as a PNG file, with the generation parameters but without the prompt, which belongs to the caller.

/// `planes` are values from -1 to 1, one plane per colour.
pub(super) fn encode(
    planes: &[f32],
    (width, height): (u32, u32),
    made: &[(&str, String)],
) -> Result<Vec<u8>, String> {
    let count = width as usize * height as usize;
    if planes.len() != count * 3 {
        return Err(format!("{} values do not make an image of {width} x {height}", planes.len()));
    }
    let pixels: Vec<u8> =
        (0..count).flat_map(|place| [0, 1, 2].map(|plane| level(planes[plane * count + place]))).collect();
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let made = made.iter().map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>().join(", ");
    let written = encoder
        .add_text_chunk("Software".to_owned(), "Remuda".to_owned())
        .and_then(|()| encoder.add_text_chunk("Comment".to_owned(), made))
        .and_then(|()| encoder.write_header())
        .and_then(|mut writer| writer.write_image_data(&pixels).and_then(|()| writer.finish()));
    written.map_err(|error| error.to_string())?;
    Ok(file)
}

fn level(number: f32) -> u8 {
    ((number / 2.0 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8
}
