//! How Remuda talks to a ComfyUI server.
