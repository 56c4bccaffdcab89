//! A stand-in for ComfyUI.
