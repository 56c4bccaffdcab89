//! The built files of the dashboard. Written by `dashboard/build`: change `dashboard/src` and run that.

use super::BuiltFile;

/// Where the page is in `FILES`.
pub(super) const PAGE: usize = 0;

pub(super) const FILES: &[BuiltFile] = &[
    BuiltFile {
        name: "index.html",
        media_type: "text/html; charset=utf-8",
        bytes: include_bytes!("built/index.html"),
    },
    BuiltFile {
        name: "index-g48cOlcP.js",
        media_type: "text/javascript; charset=utf-8",
        bytes: include_bytes!("built/index-g48cOlcP.js"),
    },
    BuiltFile {
        name: "style-Cuxco-aS.css",
        media_type: "text/css; charset=utf-8",
        bytes: include_bytes!("built/style-Cuxco-aS.css"),
    },
];
