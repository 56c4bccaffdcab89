//! The uploads of a recording, of which only a note was kept.

use reqwest::multipart::{Form, Part};

/// The form that a note describes.
pub(crate) fn form(note: &str) -> Form {
    let file = |name: &str, bytes: &[u8]| {
        Form::new().part("image", Part::bytes(bytes.to_vec()).file_name(name.to_owned()))
    };
    let (one, other) = (picture(1), picture(2));
    match note {
        "new file" | "same name, same bytes: not written again, same name back" => file("up.png", &one),
        "same name, other bytes: renamed" => file("up.png", &other),
        "same name, other bytes, overwrite=true" => file("up.png", &other).text("overwrite", "true"),
        "overwritten" => file("up.png", &picture(3)).text("overwrite", "1"),
        "subfolder and type=temp" => file("up.png", &one).text("subfolder", "a/b").text("type", "temp"),
        "type=output" => file("up.png", &one).text("type", "output"),
        "subfolder leaving the folder" => file("up.png", &one).text("subfolder", "../../x"),
        "file name with a path" => file("../up.png", &one),
        "file name with sub path" => file("sub/up.png", &one),
        "unknown type" => file("up.png", &one).text("type", "nope"),
        "not an image: bytes are not checked" => file("note.txt", b"hello"),
        "no image field" => Form::new().text("type", "input"),
        "non-ascii name" => file("höhe ✓.png", &one),
        "big" => file("big.bin", &vec![0; 101 << 20]),
        other => panic!("an upload that is not known: {other}"),
    }
}

/// An image of two by two pixels.
fn picture(grey: u8) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, 2, 2);
    encoder.set_color(png::ColorType::Grayscale);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&[grey; 4]).unwrap();
    writer.finish().unwrap();
    file
}
